/*
 * The configuration file: where to send, what it may cost, what to sample, and how services are
 * named.
 *
 * Invariants: a config that was given is checked: every number is in its range, every name fits the
 * wire, every address has a port. Texts are never NULL; "" = not given. The file may be at most
 * 1 MiB, have at most 1024 targets, scans and mappings each. Not changed after load: any thread
 * reads it.
 */
#ifndef SAMPLER_AGENT_CONFIG_H
#define SAMPLER_AGENT_CONFIG_H

#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EF_AGENT_NAME_BYTES 129 /* as on the wire, with NUL */
#define EF_AGENT_PATTERN_BYTES 257
#define EF_AGENT_ADDRESS_BYTES 128

enum ef_heap_choice {
    EF_HEAP_CHOICE_AUTO, /* not given: Node both, workerd off */
    EF_HEAP_CHOICE_OFF,
    EF_HEAP_CHOICE_ALLOC,
    EF_HEAP_CHOICE_INUSE,
    EF_HEAP_CHOICE_BOTH
};

/* How a target is sampled; from `defaults`, overridden by the target or scan. */
struct ef_sampling {
    bool cpu;
    enum ef_heap_choice heap;
    uint64_t heap_interval_bytes;
    uint64_t interval_ns; /* 0 = auto */
    uint64_t rotation_ns; /* 0 = auto */
    bool devtools;        /* people attach DevTools here: bursts only, fully stopped in between */
    bool evaluate;        /* Node: console.profile may be evaluated to rotate without a pause */
    char sha256[65];      /* of the main module that is expected; "" = whatever is seen first */
    int64_t pause_max_ns; /* 0 = budget.pause_ms_max */
};

/* One entry of `targets` or `scans`. */
struct ef_rule {
    char where[32]; /* "targets[2]", for messages */
    bool scan;
    char runtime[16];                     /* "workerd", "node"; "" = find out (scans) */
    char host[EF_AGENT_ADDRESS_BYTES];    /* "" = find by pid */
    uint16_t port_first, port_last;       /* 0 = find by pid */
    int pid;                              /* 0 = find by port */
    bool sigusr1;                         /* a Node without inspector may be sent SIGUSR1 */
    char service[EF_AGENT_PATTERN_BYTES]; /* pattern of ids (workerd) or titles; "" = all */
    char account[EF_AGENT_NAME_BYTES];
    char worker[EF_AGENT_NAME_BYTES];
    char version[EF_AGENT_NAME_BYTES];
    char region[EF_AGENT_NAME_BYTES];
    struct ef_sampling sampling;
};

struct ef_mapping {
    char service[EF_AGENT_PATTERN_BYTES];
    char account[EF_AGENT_NAME_BYTES];
    char worker[EF_AGENT_NAME_BYTES];
    char version[EF_AGENT_NAME_BYTES];
    char region[EF_AGENT_NAME_BYTES];
};

struct ef_config {
    char ingest_url[256], sync_url[256];
    char key_file[512];
    char region[EF_AGENT_NAME_BYTES];
    char host[EF_AGENT_NAME_BYTES];
    double cpu_ratio;
    int64_t pause_max_ns;
    int64_t pause_interval_ns;
    char spool_path[512];
    uint64_t spool_bytes_max;
    struct ef_rule *rules; /* targets first, then scans: the first that matches an isolate counts */
    size_t rule_count;
    struct ef_mapping *mappings;
    size_t mapping_count;
};

/*
 * Reads and checks. EF_EINVAL with one line that names the file, the line where known, and the key.
 * Gives the config (ef_config_free).
 */
EF_MUST_USE ef_rc ef_config_load(const char *path, struct ef_config **ret_config,
                                 struct ef_err *err);
/* The same from memory; `name` stands for the file in messages. */
EF_MUST_USE ef_rc ef_config_parse(const char *name, const char *text, size_t len,
                                  struct ef_config **ret_config, struct ef_err *err);
void ef_config_free(struct ef_config *config);

#endif
