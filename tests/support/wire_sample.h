/*
 * A small batch with every field set, for tests of whatever handles batches. Each struct is filled
 * in place and points to itself: do not move it.
 */
#ifndef TESTS_SUPPORT_WIRE_SAMPLE_H
#define TESTS_SUPPORT_WIRE_SAMPLE_H

#include "proto/wire/wire.h"

struct ef_wire_sample {
    Everflame__V1__Batch batch;
    Everflame__V1__Source source[2], *sources[2];
    Everflame__V1__Definitions definitions[1], *definition_list[1];
    Everflame__V1__Fragment fragment[2], *fragments[2];
    Everflame__V1__Usage usage[1], *usages[1];
    char *label_names[2], *label_values[2];
    uint64_t function_hash[3], stack_hash[3], stack_parent[3], stack_function[3];
    char *function_name[3], *function_file[3];
    uint32_t function_line[3], stack_line[3];
    uint64_t stack[3], count[3];
    int64_t value[3];
    uint32_t tick_ms[6];
};

void ef_wire_sample_init(struct ef_wire_sample *sample);

/* Writes a key file with one key (id, 32 times `fill`) into `folder`, opens it, removes it. */
struct ef_wire_keys *ef_wire_sample_keys(const char *folder, uint32_t id, uint8_t fill);

#endif
