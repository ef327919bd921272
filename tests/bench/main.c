/*
 * ef-bench: one JSON line per figure. `ef-bench --list` names them, `ef-bench NAME...` measures
 * some, `ef-bench` all.
 */
#include "tests/bench/ef_bench.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Weak: a table that is not built is left out. */
#pragma weak ef_bench_ingest
#pragma weak ef_bench_query
#pragma weak ef_bench_store

typedef const struct ef_bench *table;

static table
table_at(size_t index)
{
    const table tables[] = {ef_bench_ingest, ef_bench_store, ef_bench_query};

    return index < sizeof(tables) / sizeof(tables[0]) ? tables[index] : NULL;
}

#define TABLES 3

static void
print_result(const struct ef_bench *bench, const struct ef_bench_result *result)
{
    double ratio = result->ratio;

    if (ratio == 0 && result->limit != 0)
        ratio = result->value / result->limit;
    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"limit\":%.6g,\"ratio\":%.4g}\n",
           bench->name, result->value, bench->unit, result->limit, ratio);
    fflush(stdout);
}

/* In a process of its own. False: it failed. */
static bool
measure(const struct ef_bench *bench)
{
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        struct ef_bench_result result = {0};
        bench->run(&result);
        print_result(bench, &result);
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static bool
wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return argc < 2;
}

int
main(int argc, char **argv)
{
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0, good = true;
    int found = 0;

    if (argc > 1 && strcmp(argv[1], "--load") == 0)
        return ef_bench_load(argc - 1, argv + 1);
    for (size_t t = 0; t < TABLES; t++) {
        for (table bench = table_at(t); bench != NULL && bench->name != NULL; bench++) {
            if (list) {
                puts(bench->name);
            } else if (wanted(bench->name, argc, argv)) {
                found++;
                good = measure(bench) && good;
            }
        }
    }
    if (!list && found < argc - 1) {
        fprintf(stderr, "ef-bench: no such figure; see ef-bench --list\n");
        return 2;
    }
    return good ? 0 : 1;
}
