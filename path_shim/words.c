/* Numbers, ports and addresses as text, strictly: what one reader takes the other takes (lockstep/host_paths.py). */
#include "shim.h"

#include <arpa/inet.h>
#include <string.h>

enum { MOST_DIGITS = 18 }; /* below 2^63 whatever they are */

bool lockstep_read_number(const char *text, uint64_t most, uint64_t *value)
{
    size_t digits = strlen(text);
    uint64_t sum = 0;
    if (digits == 0 || digits > MOST_DIGITS || (digits > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < digits; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        sum = sum * 10 + (uint64_t)(text[i] - '0');
    }
    *value = sum;
    return sum <= most;
}

static bool read_port(const char *text, uint16_t *port)
{
    uint64_t value = 0;
    if (!lockstep_read_number(text, UINT16_MAX, &value) || value == 0)
        return false;
    *port = (uint16_t)value;
    return true;
}

size_t lockstep_read_ports(char *text, uint16_t ports[LOCKSTEP_PORTS])
{
    for (size_t count = 0; count < LOCKSTEP_PORTS; count++) {
        char *comma = strchr(text, ',');
        if (comma)
            *comma = '\0';
        if (!read_port(text, &ports[count]))
            return 0;
        if (!comma)
            return count + 1;
        text = comma + 1;
    }
    return 0;
}

bool lockstep_read_address(const char *text, struct in6_addr *address)
{
    struct in_addr old;
    if (inet_pton(AF_INET6, text, address) == 1)
        return true;
    if (inet_pton(AF_INET, text, &old) != 1)
        return false;
    memset(address, 0, sizeof *address);
    memset(&address->s6_addr[10], 0xff, 2);
    memcpy(&address->s6_addr[12], &old, sizeof old);
    return true;
}

size_t lockstep_put(char *line, size_t size, size_t at, const char *text)
{
    while (*text && at < size)
        line[at++] = *text++;
    return at;
}

size_t lockstep_put_number(char *line, size_t size, size_t at, uint64_t number)
{
    char digits[24];
    size_t first = sizeof digits - 1;
    digits[first] = '\0';
    do {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return lockstep_put(line, size, at, &digits[first]);
}

size_t lockstep_put_address(char *line, size_t size, size_t at, const struct in6_addr *address)
{
    char text[INET6_ADDRSTRLEN] = "-";
    if (IN6_IS_ADDR_V4MAPPED(address))
        inet_ntop(AF_INET, &address->s6_addr[12], text, sizeof text);
    else
        inet_ntop(AF_INET6, address, text, sizeof text);
    return lockstep_put(line, size, at, text);
}
