/*
 * The options of the commands, each declared once. A command's table is a list of these rows; all
 * tables write into the one struct below, so that code shared by commands need not know which
 * command runs.
 *
 * Invariants: a row stands in the struct once. `convert` uses the flags --from and --to for
 * formats: its rows write into the same text fields.
 */
#ifndef COLLECTOR_CLI_OPTIONS_H
#define COLLECTOR_CLI_OPTIONS_H

#include "proto/base/option.h"

/* Longest name of an account, worker or version that the server takes; DESIGN §9. */
#define EF_CLI_NAME_BYTES_MAX 255

#define EF_CLI_OPT_URL(X)                                                                          \
    X(url, EF_OPT_STR, "", 0, 511, "http://127.0.0.1:4680", EF_OPT_LIVE,                           \
      "Address of the collector; also EVERFLAME_URL.")
#define EF_CLI_OPT_TIMEOUT(X)                                                                      \
    X(timeout_ms, EF_OPT_SPAN_MS, "ms", 1, 3600000, "30s", EF_OPT_LIVE,                            \
      "Longest wait for an answer.")
#define EF_CLI_OPT_WORKER_ID(X)                                                                    \
    X(worker_id, EF_OPT_STR, "", 0, EF_CLI_NAME_BYTES_MAX, "", EF_OPT_LIVE,                        \
      "Name of the worker; also EVERFLAME_WORKER_ID.")
#define EF_CLI_OPT_VERSIONS(X)                                                                     \
    X(version, EF_OPT_STR, "", 0, EF_CLI_NAME_BYTES_MAX, "", EF_OPT_LIVE,                          \
      "Only this version; may be given several times. Without it: all versions.")
#define EF_CLI_OPT_VERSION(X)                                                                      \
    X(version, EF_OPT_STR, "", 0, EF_CLI_NAME_BYTES_MAX, "", EF_OPT_LIVE, "Version of the worker.")
#define EF_CLI_OPT_ACCOUNT(X)                                                                      \
    X(account, EF_OPT_STR, "", 0, EF_CLI_NAME_BYTES_MAX, "", EF_OPT_LIVE,                          \
      "Account of the worker; needed when several accounts have a worker of this name.")
#define EF_CLI_OPT_PROFILE_TYPE(X)                                                                 \
    X(profile_type, EF_OPT_STR, "", 0, 16, "cpu", EF_OPT_LIVE,                                     \
      "What was measured: cpu, alloc (also called heap), inuse or wall.")
#define EF_CLI_OPT_IMPORT_TYPE(X)                                                                  \
    X(profile_type, EF_OPT_STR, "", 0, 16, "", EF_OPT_LIVE,                                        \
      "What was measured: cpu, alloc (heap), inuse or wall. Without it: as the file says.")
#define EF_CLI_OPT_FROM(X)                                                                         \
    X(from, EF_OPT_STR, "", 0, 64, "now-1h", EF_OPT_LIVE,                                          \
      "Start of the range: now-15m, 2026-12-01T03:12:00Z, or Unix seconds or milliseconds.")
#define EF_CLI_OPT_TO(X)                                                                           \
    X(to, EF_OPT_STR, "", 0, 64, "now", EF_OPT_LIVE, "End of the range, written like --from.")
#define EF_CLI_OPT_FROM_FORMAT(X)                                                                  \
    X(from, EF_OPT_STR, "", 0, 32, "", EF_OPT_LIVE,                                                \
      "Format of IN. Without it: told by its name or its content.")
#define EF_CLI_OPT_TO_FORMAT(X)                                                                    \
    X(to, EF_OPT_STR, "", 0, 32, "", EF_OPT_LIVE, "Format of OUT. Without it: told by its name.")
#define EF_CLI_OPT_FORMAT(X)                                                                       \
    X(format, EF_OPT_STR, "", 0, 32, "", EF_OPT_LIVE,                                              \
      "Format of the answer: pprof, folded, speedscope, cpuprofile, heapprofile or json.")
#define EF_CLI_OPT_IMPORT_FORMAT(X)                                                                \
    X(format, EF_OPT_STR, "", 0, 32, "", EF_OPT_LIVE,                                              \
      "Format of the files. Without it: told by name or content.")
#define EF_CLI_OPT_OUTPUT(X)                                                                       \
    X(output, EF_OPT_STR, "", 0, 511, "", EF_OPT_LIVE,                                             \
      "File to write, also -o FILE; it appears whole or not at all. Without it: standard output.")
#define EF_CLI_OPT_FORCE(X)                                                                        \
    X(force, EF_OPT_BOOL, "", 0, 1, "false", EF_OPT_LIVE,                                          \
      "Write binary data to a terminal all the same.")
#define EF_CLI_OPT_LIMIT(X)                                                                        \
    X(limit, EF_OPT_U64, "functions", 1, 100000, "30", EF_OPT_LIVE, "Most functions to show.")
#define EF_CLI_OPT_STEP(X)                                                                         \
    X(step_ms, EF_OPT_SPAN_MS, "ms", 1000, 31536000000.0, "10s", EF_OPT_LIVE, "Length of a step.")
#define EF_CLI_OPT_REGION(X)                                                                       \
    X(region, EF_OPT_STR, "", 0, EF_CLI_NAME_BYTES_MAX, "", EF_OPT_LIVE,                           \
      "Region the profile was taken in.")
#define EF_CLI_OPT_AT(X)                                                                           \
    X(at, EF_OPT_STR, "", 0, 64, "", EF_OPT_LIVE,                                                  \
      "Start of the profile, written like 2026-12-01T03:12:00Z or now-15m. Without it: as the "    \
      "file says.")
#define EF_CLI_OPT_DURATION(X)                                                                     \
    X(duration_ms, EF_OPT_SPAN_MS, "ms", 0, 31536000000.0, "0", EF_OPT_LIVE,                       \
      "Length of the profile. Without it: as the file says.")
#define EF_CLI_OPT_JSON(X)                                                                         \
    X(json, EF_OPT_BOOL, "", 0, 1, "false", EF_OPT_LIVE,                                           \
      "Write the server's JSON (stable field names) instead of a table.")
#define EF_CLI_OPT_MARKDOWN(X)                                                                     \
    X(markdown, EF_OPT_BOOL, "", 0, 1, "false", EF_OPT_LIVE, "Write the whole reference.")

struct ef_cli_values {
    EF_CLI_OPT_URL(EF_OPTION_FIELD)
    EF_CLI_OPT_TIMEOUT(EF_OPTION_FIELD)
    EF_CLI_OPT_WORKER_ID(EF_OPTION_FIELD)
    EF_CLI_OPT_VERSION(EF_OPTION_FIELD)
    EF_CLI_OPT_ACCOUNT(EF_OPTION_FIELD)
    EF_CLI_OPT_PROFILE_TYPE(EF_OPTION_FIELD)
    EF_CLI_OPT_FROM(EF_OPTION_FIELD)
    EF_CLI_OPT_TO(EF_OPTION_FIELD)
    EF_CLI_OPT_FORMAT(EF_OPTION_FIELD)
    EF_CLI_OPT_OUTPUT(EF_OPTION_FIELD)
    EF_CLI_OPT_FORCE(EF_OPTION_FIELD)
    EF_CLI_OPT_LIMIT(EF_OPTION_FIELD)
    EF_CLI_OPT_STEP(EF_OPTION_FIELD)
    EF_CLI_OPT_REGION(EF_OPTION_FIELD)
    EF_CLI_OPT_AT(EF_OPTION_FIELD)
    EF_CLI_OPT_DURATION(EF_OPTION_FIELD)
    EF_CLI_OPT_JSON(EF_OPTION_FIELD)
    EF_CLI_OPT_MARKDOWN(EF_OPTION_FIELD)
};

#endif
