/* The scenarios, each a life of one process. `version` is the newest profiler interface that this NCCL knows. */
#ifndef LOCKSTEP_TESTS_SCENARIOS_H
#define LOCKSTEP_TESTS_SCENARIOS_H

struct scenario {
    const char *name;
    void (*play)(int version);
    int newest, oldest; /* versions it is played with */
};

/* Each file's own, ended by one without a name. */
extern const struct scenario normal_scenarios[];
extern const struct scenario kind_scenarios[];
extern const struct scenario detail_scenarios[];
extern const struct scenario waiting_scenarios[];
extern const struct scenario hostile_scenarios[];
extern const struct scenario handle_scenarios[];
extern const struct scenario crowd_scenarios[];
extern const struct scenario process_scenarios[];
extern const struct scenario control_scenarios[];
extern const struct scenario governor_scenarios[];
extern const struct scenario failure_scenarios[];
extern const struct scenario release_scenarios[];

#endif
