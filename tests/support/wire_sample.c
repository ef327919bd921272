/*
 * Decides what a typical small batch looks like. Test thread only.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/wire_sample.h"

static void
fill_sources(struct ef_wire_sample *sample)
{
    for (int i = 0; i < 2; i++) {
        Everflame__V1__Source *source = &sample->source[i];
        everflame__v1__source__init(source);
        source->account = "acme";
        source->worker = "checkout";
        source->version = "v41";
        source->instance = i == 0 ? "pid:100:1" : "pid:100:2";
        source->host = "host-1";
        source->region = "fra";
        source->runtime = "workerd";
        sample->sources[i] = source;
    }
    sample->label_names[0] = "tier";
    sample->label_values[0] = "gold";
    sample->label_names[1] = "größe";
    sample->label_values[1] = "";
    sample->source[1].n_label_names = sample->source[1].n_label_values = 2;
    sample->source[1].label_names = sample->label_names;
    sample->source[1].label_values = sample->label_values;
}

static void
fill_definitions(struct ef_wire_sample *sample)
{
    static char *const names[3] = {"handle", "parseJSON", ""};
    static char *const files[3] = {"worker.js", "lib/json.js", ""};
    Everflame__V1__Definitions *definitions = &sample->definitions[0];

    everflame__v1__definitions__init(definitions);
    for (uint32_t i = 0; i < 3; i++) {
        sample->function_hash[i] = 0x1000 + i;
        sample->function_name[i] = names[i];
        sample->function_file[i] = files[i];
        sample->function_line[i] = 10 * i;
        sample->stack_hash[i] = 0x2000 + i;
        sample->stack_parent[i] = i == 0 ? 0 : 0x2000 + i - 1;
        sample->stack_function[i] = 0x1000 + i;
        sample->stack_line[i] = 10 * i + 5;
    }
    definitions->n_function_hash = definitions->n_function_name = definitions->n_function_file =
        definitions->n_function_line = 3;
    definitions->n_stack_hash = definitions->n_stack_parent = definitions->n_stack_function =
        definitions->n_stack_line = 3;
    definitions->function_hash = sample->function_hash;
    definitions->function_name = sample->function_name;
    definitions->function_file = sample->function_file;
    definitions->function_line = sample->function_line;
    definitions->stack_hash = sample->stack_hash;
    definitions->stack_parent = sample->stack_parent;
    definitions->stack_function = sample->stack_function;
    definitions->stack_line = sample->stack_line;
    sample->definition_list[0] = definitions;
}

static void
fill_fragments(struct ef_wire_sample *sample)
{
    for (int i = 0; i < 2; i++) {
        Everflame__V1__Fragment *fragment = &sample->fragment[i];
        everflame__v1__fragment__init(fragment);
        fragment->source = (uint32_t)i;
        fragment->profile_type =
            i == 0 ? EVERFLAME__V1__PROFILE_TYPE__CPU : EVERFLAME__V1__PROFILE_TYPE__ALLOC;
        fragment->stratum = i == 0 ? EVERFLAME__V1__STRATUM__HOT : EVERFLAME__V1__STRATUM__NORMAL;
        fragment->start_ns = INT64_C(1764590000000000000) + i;
        fragment->span_ns = UINT64_C(10000000000);
        fragment->interval = i == 0 ? 50000000 : 524288;
        fragment->interval_measured = fragment->interval + 1000;
        fragment->weight_milli = 1250;
        fragment->n_stack = fragment->n_count = 3;
        fragment->stack = sample->stack;
        fragment->count = sample->count;
        fragment->heap_used_bytes = 50000000;
        fragment->heap_limit_bytes = 134217728;
        fragment->pause_ns = 35000000;
        sample->fragments[i] = fragment;
    }
    for (uint32_t i = 0; i < 3; i++) {
        sample->stack[i] = 0x2000 + i;
        sample->count[i] = i + 1;
        sample->value[i] = 1000 * ((int64_t)i + 1);
    }
    for (uint32_t i = 0; i < 6; i++)
        sample->tick_ms[i] = 100 * i;
    sample->fragment[0].n_tick_ms = 6;
    sample->fragment[0].tick_ms = sample->tick_ms;
    sample->fragment[1].n_value = 3;
    sample->fragment[1].value = sample->value;
}

void
ef_wire_sample_init(struct ef_wire_sample *sample)
{
    Everflame__V1__Usage *usage = &sample->usage[0];

    memset(sample, 0, sizeof(*sample));
    fill_sources(sample);
    fill_definitions(sample);
    fill_fragments(sample);
    everflame__v1__usage__init(usage);
    usage->start_ns = INT64_C(1764590000000000000);
    usage->span_ns = UINT64_C(10000000000);
    usage->cpu_ns = 4000000000;
    usage->hot_span_ns = 1000000000;
    usage->hot_cpu_ns = 900000000;
    usage->isolates = 2;
    sample->usages[0] = usage;
    everflame__v1__batch__init(&sample->batch);
    sample->batch.n_sources = 2;
    sample->batch.sources = sample->sources;
    sample->batch.n_definitions = 1;
    sample->batch.definitions = sample->definition_list;
    sample->batch.n_fragments = 2;
    sample->batch.fragments = sample->fragments;
    sample->batch.n_usages = 1;
    sample->batch.usages = sample->usages;
}

struct ef_wire_keys *
ef_wire_sample_keys(const char *folder, uint32_t id, uint8_t fill)
{
    struct ef_wire_keys *keys = NULL;
    struct ef_err err = {0};
    char path[600];
    FILE *file;

    snprintf(path, sizeof(path), "%s/key-%u-%u", folder, id, fill);
    file = fopen(path, "w");
    if (file == NULL)
        fail_msg("cannot write '%s'", path);
    fprintf(file, "# a test key\n%u ", id);
    for (int i = 0; i < EF_WIRE_KEY_BYTES; i++)
        fprintf(file, "%02x", fill);
    fprintf(file, "\n");
    fclose(file);
    if (ef_wire_keys_open(path, &keys, &err) != EF_OK)
        fail_msg("%s", err.msg);
    unlink(path);
    return keys;
}
