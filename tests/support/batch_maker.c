/*
 * Decides nothing: fills the structs that protoc-c made. Test thread only; aborts without memory.
 */
#include "tests/support/batch_maker.h"

#include "proto/model/hash.h"

#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 16u /* functions on one path */

struct ef_batch_maker {
    Everflame__V1__Batch batch;
};

static void *
add_item(void *array, size_t count, size_t item_bytes)
{
    /* Doubles at powers of two, so that adding one is cheap. */
    if (count == 0 || (count & (count - 1)) == 0) {
        array = realloc(array, (count == 0 ? 1 : count * 2) * item_bytes);
        if (array == NULL)
            abort();
    }
    return array;
}

#define ADD(array, count, value)                                                                   \
    do {                                                                                           \
        (array) = add_item((array), (count), sizeof(*(array)));                                    \
        (array)[(count)++] = (value);                                                              \
    } while (0)

struct ef_batch_maker *
ef_batch_maker_open(void)
{
    struct ef_batch_maker *maker = calloc(1, sizeof(*maker));

    if (maker == NULL)
        abort();
    everflame__v1__batch__init(&maker->batch);
    return maker;
}

static void
free_source(Everflame__V1__Source *source)
{
    free(source->worker);
    free(source->version);
    free(source->instance);
    free(source->region);
    free(source);
}

static void
free_definitions(Everflame__V1__Definitions *d)
{
    for (size_t i = 0; i < d->n_function_name; i++) {
        free(d->function_name[i]);
        free(d->function_file[i]);
    }
    free(d->function_hash);
    free(d->function_name);
    free(d->function_file);
    free(d->function_line);
    free(d->stack_hash);
    free(d->stack_parent);
    free(d->stack_function);
    free(d->stack_line);
    free(d);
}

static void
free_fragment(Everflame__V1__Fragment *fragment)
{
    free(fragment->stack);
    free(fragment->count);
    free(fragment->value);
    free(fragment->tick_ms);
    free(fragment);
}

void
ef_batch_maker_clear(struct ef_batch_maker *maker)
{
    Everflame__V1__Batch *b = &maker->batch;

    for (size_t i = 0; i < b->n_sources; i++)
        free_source(b->sources[i]);
    for (size_t i = 0; i < b->n_definitions; i++)
        free_definitions(b->definitions[i]);
    for (size_t i = 0; i < b->n_fragments; i++)
        free_fragment(b->fragments[i]);
    for (size_t i = 0; i < b->n_usages; i++)
        free(b->usages[i]);
    free(b->sources);
    free(b->definitions);
    free(b->fragments);
    free(b->usages);
    everflame__v1__batch__init(b);
}

void
ef_batch_maker_free(struct ef_batch_maker *maker)
{
    ef_batch_maker_clear(maker);
    free(maker);
}

static char *
copy(const char *text)
{
    char *made = strdup(text);

    if (made == NULL)
        abort();
    return made;
}

static char constant_account[] = "acct", constant_host[] = "host1", constant_runtime[] = "test";

uint32_t
ef_make_source(struct ef_batch_maker *maker, const char *worker, const char *version,
               const char *instance, const char *region)
{
    Everflame__V1__Batch *b = &maker->batch;
    Everflame__V1__Source *source;

    for (uint32_t i = 0; i < b->n_sources; i++) {
        source = b->sources[i];
        if (strcmp(source->worker, worker) == 0 && strcmp(source->version, version) == 0 &&
            strcmp(source->instance, instance) == 0 && strcmp(source->region, region) == 0)
            return i;
    }
    source = calloc(1, sizeof(*source));
    if (source == NULL)
        abort();
    everflame__v1__source__init(source);
    source->account = constant_account;
    source->host = constant_host;
    source->runtime = constant_runtime;
    source->worker = copy(worker);
    source->version = copy(version);
    source->instance = copy(instance);
    source->region = copy(region);
    ADD(b->sources, b->n_sources, source);
    return (uint32_t)b->n_sources - 1;
}

static Everflame__V1__Definitions *
definitions_of(struct ef_batch_maker *maker, uint32_t source)
{
    Everflame__V1__Batch *b = &maker->batch;
    Everflame__V1__Definitions *made;

    for (size_t i = 0; i < b->n_definitions; i++) {
        if (b->definitions[i]->source == source)
            return b->definitions[i];
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        abort();
    everflame__v1__definitions__init(made);
    made->source = source;
    ADD(b->definitions, b->n_definitions, made);
    return made;
}

void
ef_make_raw_function(struct ef_batch_maker *maker, uint32_t source, uint64_t hash, const char *name,
                     const char *file, uint32_t line)
{
    Everflame__V1__Definitions *d = definitions_of(maker, source);

    ADD(d->function_hash, d->n_function_hash, hash);
    ADD(d->function_name, d->n_function_name, copy(name));
    ADD(d->function_file, d->n_function_file, copy(file));
    ADD(d->function_line, d->n_function_line, line);
}

void
ef_make_raw_stack(struct ef_batch_maker *maker, uint32_t source, uint64_t hash, uint64_t parent,
                  uint64_t function, uint32_t line)
{
    Everflame__V1__Definitions *d = definitions_of(maker, source);

    ADD(d->stack_hash, d->n_stack_hash, hash);
    ADD(d->stack_parent, d->n_stack_parent, parent);
    ADD(d->stack_function, d->n_stack_function, function);
    ADD(d->stack_line, d->n_stack_line, line);
}

/* Splits a path; gives the number of names. Hashes run from the root. */
static size_t
hash_path(const char *path, char names[NAMES_MAX][64], uint64_t *functions, uint64_t *stacks)
{
    size_t count = 0;
    uint64_t parent = 0;

    for (const char *at = path; *at != '\0' && count < NAMES_MAX;) {
        size_t len = strcspn(at, ";");
        memcpy(names[count], at, len);
        names[count][len] = '\0';
        functions[count] = ef_function_hash(names[count], len, "app.js", 6, 1);
        stacks[count] = parent = ef_stack_hash(parent, functions[count], 1);
        count++;
        at += len + (at[len] == ';');
    }
    return count;
}

uint64_t
ef_stack_of(const char *path)
{
    char names[NAMES_MAX][64];
    uint64_t functions[NAMES_MAX], stacks[NAMES_MAX];

    return stacks[hash_path(path, names, functions, stacks) - 1];
}

void
ef_make_definition(struct ef_batch_maker *maker, uint32_t source, const char *path, bool reversed)
{
    char names[NAMES_MAX][64];
    uint64_t functions[NAMES_MAX], stacks[NAMES_MAX];
    size_t count = hash_path(path, names, functions, stacks);

    for (size_t i = 0; i < count; i++) {
        size_t k = reversed ? count - 1 - i : i;
        ef_make_raw_function(maker, source, functions[k], names[k], "app.js", 1);
        ef_make_raw_stack(maker, source, stacks[k], k == 0 ? 0 : stacks[k - 1], functions[k], 1);
    }
}

Everflame__V1__Fragment *
ef_make_fragment(struct ef_batch_maker *maker, uint32_t source, int64_t start_ns, uint64_t span_ns)
{
    Everflame__V1__Fragment *fragment = calloc(1, sizeof(*fragment));

    if (fragment == NULL)
        abort();
    everflame__v1__fragment__init(fragment);
    fragment->source = source;
    fragment->profile_type = EVERFLAME__V1__PROFILE_TYPE__CPU;
    fragment->start_ns = start_ns;
    fragment->span_ns = span_ns;
    fragment->interval = 10000000;
    ADD(maker->batch.fragments, maker->batch.n_fragments, fragment);
    return fragment;
}

static Everflame__V1__Fragment *
last_fragment(struct ef_batch_maker *maker)
{
    return maker->batch.fragments[maker->batch.n_fragments - 1];
}

void
ef_make_samples(struct ef_batch_maker *maker, uint64_t stack, uint64_t count)
{
    Everflame__V1__Fragment *fragment = last_fragment(maker);

    ADD(fragment->stack, fragment->n_stack, stack);
    ADD(fragment->count, fragment->n_count, count);
}

void
ef_make_valued(struct ef_batch_maker *maker, uint64_t stack, uint64_t count, int64_t value)
{
    Everflame__V1__Fragment *fragment = last_fragment(maker);

    ef_make_samples(maker, stack, count);
    ADD(fragment->value, fragment->n_value, value);
}

void
ef_make_tick(struct ef_batch_maker *maker, uint32_t tick_ms)
{
    Everflame__V1__Fragment *fragment = last_fragment(maker);

    ADD(fragment->tick_ms, fragment->n_tick_ms, tick_ms);
}

Everflame__V1__Usage *
ef_make_usage(struct ef_batch_maker *maker, uint32_t source, int64_t start_ns, uint64_t span_ns,
              uint64_t cpu_ns)
{
    Everflame__V1__Usage *usage = calloc(1, sizeof(*usage));

    if (usage == NULL)
        abort();
    everflame__v1__usage__init(usage);
    usage->source = source;
    usage->start_ns = start_ns;
    usage->span_ns = span_ns;
    usage->cpu_ns = cpu_ns;
    ADD(maker->batch.usages, maker->batch.n_usages, usage);
    return usage;
}

const Everflame__V1__Batch *
ef_make_batch(struct ef_batch_maker *maker)
{
    return &maker->batch;
}
