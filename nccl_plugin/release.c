/* Which NCCL called us, found without linking it, and what is known to be wrong with that release. */
#define _GNU_SOURCE

#include "plugin.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/statvfs.h>

/* The module that holds an address of NCCL's, and where its tables lie. */
struct module {
    uintptr_t address;
    const char *name;
    uintptr_t base;
    const Elf64_Sym *symbols;
    const char *strings;
    const uint32_t *hash;     /* DT_HASH: its second word counts the symbols */
    const uint32_t *gnu_hash; /* DT_GNU_HASH: counting takes a walk */
};

static bool holds_address(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *part = &info->dlpi_phdr[i];

        if (part->p_type == PT_LOAD && address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

/* glibc has relocated these pointers already, except in the vDSO, which does not call us. */
static void note_tables(struct module *module, const Elf64_Dyn *entry)
{
    for (; entry->d_tag != DT_NULL; entry++) {
        const void *place = (const void *)entry->d_un.d_ptr;

        if (entry->d_tag == DT_SYMTAB)
            module->symbols = place;
        else if (entry->d_tag == DT_STRTAB)
            module->strings = place;
        else if (entry->d_tag == DT_HASH)
            module->hash = place;
        else if (entry->d_tag == DT_GNU_HASH)
            module->gnu_hash = place;
    }
}

static int find_module(struct dl_phdr_info *info, size_t size, void *wanted)
{
    struct module *module = wanted;

    (void)size;
    if (!holds_address(info, module->address))
        return 0;
    module->name = info->dlpi_name;
    module->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            note_tables(module, (const Elf64_Dyn *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
    return 1;
}

/* The highest symbol that any chain reaches, plus one. */
static uint32_t count_by_gnu_hash(const uint32_t *table)
{
    const uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *bucket = table + 4 + bloom_words * 2;
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;

    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return first;
    while ((chain[last - first] & 1) == 0)
        last++;
    return last + 1;
}

static uint32_t count_symbols(const struct module *module)
{
    if (module->symbols == NULL || module->strings == NULL)
        return 0;
    if (module->hash != NULL)
        return module->hash[1];
    return module->gnu_hash != NULL ? count_by_gnu_hash(module->gnu_hash) : 0;
}

typedef int get_version_fn(int *version);

static get_version_fn *find_get_version(const struct module *module)
{
    const uint32_t count = count_symbols(module);

    for (uint32_t i = 0; i < count; i++) {
        const Elf64_Sym *symbol = &module->symbols[i];

        if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC
            && strcmp(module->strings + symbol->st_name, "ncclGetVersion") == 0)
            return (get_version_fn *)(module->base + symbol->st_value);
    }
    return NULL;
}

uint32_t release_version(const void *caller)
{
    struct module module = {.address = (uintptr_t)caller};
    get_version_fn *get_version;
    int version = 0;

    if (dl_iterate_phdr(find_module, &module) == 0)
        return 0;
    get_version = find_get_version(&module);
    if (get_version == NULL || get_version(&version) != 0 || version < 0)
        return 0;
    return (uint32_t)version;
}

/* Releases in which a profiler that asks for anything can end the job. */
bool release_is_unsafe(uint32_t version, const void *caller, const char **why)
{
    struct module module = {.address = (uintptr_t)caller};

    if (dl_iterate_phdr(find_module, &module) != 0 && module.name != NULL && strstr(module.name, "librccl") != NULL) {
        *why = "this is RCCL, whose profiler tables differ from NCCL's";
        return true;
    }
    if (version == 23003) {
        *why = "NCCL 2.30.3 crashes in alltoall with any profiler (nccl issue 2112)";
        return true;
    }
    return false;
}

/* One line per stretch of releases, first to last: may the GPU times of kernels be asked for, and why (not). */
struct kernel_rule {
    uint32_t first;
    uint32_t last;
    bool good;
};

static const struct kernel_rule KERNEL_RULES[] = {
    {22600, 22799, false}, /* "Proxy append out of bounds" ends jobs with alltoall (nccl issue 2039) */
    {22800, 23099, true},  /* right until a send to oneself; then the reader drops them */
    {23100, 23199, false}, /* costs 4 to 13 % from 128 KB to 4 MB (nccl issue 2355) */
    {23200, 23299, true},
};

/* NCCL keeps these times in /dev/shm and crashes when that is too small for them (nccl issue 2326). */
static bool has_room_in_shared_memory(void)
{
    struct statvfs shm;

    return statvfs("/dev/shm", &shm) == 0 && (uint64_t)shm.f_bavail * shm.f_frsize >= UINT64_C(256) << 20;
}

bool release_has_good_kernel_times(uint32_t version, uint32_t api_version)
{
    if (api_version < 4 || !has_room_in_shared_memory()) /* before v4 the event carries no time */
        return false;
    for (size_t i = 0; i < sizeof KERNEL_RULES / sizeof KERNEL_RULES[0]; i++)
        if (version >= KERNEL_RULES[i].first && version <= KERNEL_RULES[i].last)
            return KERNEL_RULES[i].good;
    return false; /* a release that nobody has looked at yet, or one that we could not tell */
}
