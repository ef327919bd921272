/*
 * Makes batches for tests of what takes them: sources, definitions, fragments, usages, as many as
 * wanted. All memory belongs to the maker.
 */
#ifndef TESTS_SUPPORT_BATCH_MAKER_H
#define TESTS_SUPPORT_BATCH_MAKER_H

#include "proto/everflame/v1/wire.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_batch_maker;
struct ef_batch_maker *ef_batch_maker_open(void);
void ef_batch_maker_free(struct ef_batch_maker *maker);
/* Forgets all that was made. */
void ef_batch_maker_clear(struct ef_batch_maker *maker);

/* Account "acct", host "host1", runtime "test". Gives the index; equal sources are one. */
uint32_t ef_make_source(struct ef_batch_maker *maker, const char *worker, const char *version,
                        const char *instance, const char *region);
/* Content hashes of a stack written as "main;work;leaf": functions of these names, file "app.js",
 * first line 1, at line 1 of each. */
uint64_t ef_stack_of(const char *path);
/* Defines a stack with all its callers. `reversed`: leaf first. */
void ef_make_definition(struct ef_batch_maker *maker, uint32_t source, const char *path,
                        bool reversed);
/* A definition as given, true or not. */
void ef_make_raw_stack(struct ef_batch_maker *maker, uint32_t source, uint64_t hash,
                       uint64_t parent, uint64_t function, uint32_t line);
void ef_make_raw_function(struct ef_batch_maker *maker, uint32_t source, uint64_t hash,
                          const char *name, const char *file, uint32_t line);
/* An empty CPU fragment with interval 10 ms; change its fields at will until the next call. */
Everflame__V1__Fragment *ef_make_fragment(struct ef_batch_maker *maker, uint32_t source,
                                          int64_t start_ns, uint64_t span_ns);
/* Adds samples to the last fragment. */
void ef_make_samples(struct ef_batch_maker *maker, uint64_t stack, uint64_t count);
void ef_make_valued(struct ef_batch_maker *maker, uint64_t stack, uint64_t count, int64_t value);
void ef_make_tick(struct ef_batch_maker *maker, uint32_t tick_ms);
Everflame__V1__Usage *ef_make_usage(struct ef_batch_maker *maker, uint32_t source, int64_t start_ns,
                                    uint64_t span_ns, uint64_t cpu_ns);
/* The batch of all that was made; valid until the next call. */
const Everflame__V1__Batch *ef_make_batch(struct ef_batch_maker *maker);

#endif
