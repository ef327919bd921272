/*
 * Decides how fragments become one wire message: sources once, rows merged, definitions by version.
 * Must not know about sequences, spool or network. Runs in whatever thread holds the publisher's
 * lock.
 */
#include "sampler/lib/batch.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/check.h"

/* Far above what the limits let in; the arena keeps at most 1 MiB between batches. */
#define ARENA_BYTES_MAX (64u << 20)
#define FIELD_BYTES 8u /* tag and length of a nested message, with reserve */

void
ef_batch_init(struct ef_batch *batch)
{
    memset(batch, 0, sizeof(*batch));
    ef_wire_arena_init(&batch->arena);
    ef_wire_arena_reset(&batch->arena, ARENA_BYTES_MAX);
    ef_map_init(&batch->places, EF_WIRE_PAIRS_MAX);
}

void
ef_batch_fini(struct ef_batch *batch)
{
    ef_wire_arena_fini(&batch->arena);
    ef_map_fini(&batch->places);
    free(batch->rows);
}

void
ef_batch_clear(struct ef_batch *batch)
{
    ef_wire_arena_reset(&batch->arena, ARENA_BYTES_MAX);
    batch->source_count = batch->fragment_count = batch->usage_count = 0;
    batch->samples = 0;
    batch->wire_bytes = 0;
}

static void *
take(struct ef_wire_arena *arena, size_t bytes)
{
    return arena->allocator.alloc(arena->allocator.allocator_data, bytes > 0 ? bytes : 1);
}

static ef_rc
no_memory(struct ef_err *err)
{
    return ef_err_set(err, EF_ENOMEM, "no memory for the batch under construction");
}

/* ---- sources ---- */

char *
ef_batch_copy_text(struct ef_wire_arena *arena, const char *text, size_t len_max)
{
    size_t len = text != NULL ? strnlen(text, len_max + 1) : 0;
    char *copy;

    if (len > len_max) {
        for (len = len_max; len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80;)
            len--;
    }
    copy = take(arena, len + 1);
    if (copy == NULL)
        return NULL;
    if (len > 0)
        memcpy(copy, text, len);
    copy[len] = 0;
    return copy;
}

static char *
text_of(const char *text)
{
    return text != NULL ? (char *)(uintptr_t)text : (char *)(uintptr_t) "";
}

void
ef_batch_borrow_source(const struct ef_source *source, Everflame__V1__Source *ret)
{
    everflame__v1__source__init(ret);
    ret->account = text_of(source->account);
    ret->worker = text_of(source->worker);
    ret->version = text_of(source->version);
    ret->instance = text_of(source->instance);
    ret->host = text_of(source->host);
    ret->region = text_of(source->region);
    ret->runtime = text_of(source->runtime);
    ret->n_label_names = ret->n_label_values = source->label_count;
    ret->label_names = (char **)(uintptr_t)source->label_names;
    ret->label_values = (char **)(uintptr_t)source->label_values;
}

Everflame__V1__Source *
ef_batch_copy_source(struct ef_wire_arena *arena, const struct ef_source *source)
{
    const char *const texts[7] = {source->account,  source->worker, source->version,
                                  source->instance, source->host,   source->region,
                                  source->runtime};
    Everflame__V1__Source *copy = take(arena, sizeof(*copy));
    char *copies[7];

    if (copy == NULL)
        return NULL;
    everflame__v1__source__init(copy);
    for (int i = 0; i < 7; i++) {
        copies[i] = ef_batch_copy_text(arena, texts[i], EF_WIRE_NAME_BYTES_MAX);
        if (copies[i] == NULL)
            return NULL;
    }
    copy->account = copies[0], copy->worker = copies[1], copy->version = copies[2];
    copy->instance = copies[3], copy->host = copies[4], copy->region = copies[5];
    copy->runtime = copies[6];
    copy->n_label_names = copy->n_label_values = source->label_count;
    copy->label_names = take(arena, source->label_count * sizeof(char *));
    copy->label_values = take(arena, source->label_count * sizeof(char *));
    if (copy->label_names == NULL || copy->label_values == NULL)
        return NULL;
    for (size_t i = 0; i < source->label_count; i++) {
        copy->label_names[i] =
            ef_batch_copy_text(arena, source->label_names[i], EF_WIRE_NAME_BYTES_MAX);
        copy->label_values[i] =
            ef_batch_copy_text(arena, source->label_values[i], EF_WIRE_NAME_BYTES_MAX);
        if (copy->label_names[i] == NULL || copy->label_values[i] == NULL)
            return NULL;
    }
    return copy;
}

static uint64_t
hash_source(const Everflame__V1__Source *source)
{
    const char *const texts[7] = {source->account,  source->worker, source->version,
                                  source->instance, source->host,   source->region,
                                  source->runtime};
    uint64_t hash = source->n_label_names;

    for (int i = 0; i < 7; i++)
        hash = hash * UINT64_C(0x9e3779b97f4a7c15) ^ ef_hash(texts[i], strlen(texts[i]));
    for (size_t i = 0; i < source->n_label_names; i++) {
        hash = hash * UINT64_C(0x9e3779b97f4a7c15) ^
               ef_hash(source->label_names[i], strlen(source->label_names[i]));
        hash = hash * UINT64_C(0x9e3779b97f4a7c15) ^
               ef_hash(source->label_values[i], strlen(source->label_values[i]));
    }
    return hash;
}

static size_t
packed_bytes(const void *message)
{
    return protobuf_c_message_get_packed_size(message) + FIELD_BYTES;
}

size_t
ef_batch_source_bytes(const struct ef_source *source)
{
    Everflame__V1__Source borrowed;

    ef_batch_borrow_source(source, &borrowed);
    return packed_bytes(&borrowed);
}

static ef_rc
find_source(struct ef_batch *batch, const struct ef_source *source, uint32_t *ret_index,
            struct ef_err *err)
{
    Everflame__V1__Source borrowed, *copy;
    uint64_t hash;

    ef_batch_borrow_source(source, &borrowed);
    hash = hash_source(&borrowed);
    for (size_t i = 0; i < batch->source_count; i++) {
        if (batch->source_hash[i] == hash) {
            *ret_index = (uint32_t)i;
            return EF_OK;
        }
    }
    copy = ef_batch_copy_source(&batch->arena, source);
    if (copy == NULL)
        return no_memory(err);
    *ret_index = (uint32_t)batch->source_count;
    batch->sources[batch->source_count] = copy;
    batch->source_hash[batch->source_count++] = hash;
    batch->wire_bytes += packed_bytes(copy);
    return EF_OK;
}

bool
ef_batch_has_room(const struct ef_batch *batch, size_t bytes, size_t bytes_max)
{
    /* Definitions may need sources of their own. */
    return batch->source_count < EF_BATCH_ITEMS_MAX / 2 &&
           batch->fragment_count < EF_BATCH_ITEMS_MAX && batch->usage_count < EF_BATCH_ITEMS_MAX &&
           batch->wire_bytes + bytes <= bytes_max;
}

ef_rc
ef_batch_check(const struct ef_source *source, Everflame__V1__Fragment *fragment,
               Everflame__V1__Usage *usage, struct ef_err *err)
{
    Everflame__V1__Batch batch = EVERFLAME__V1__BATCH__INIT;
    Everflame__V1__Source borrowed, *sources = &borrowed;
    ef_rc rc;

    if (source->label_count > EF_WIRE_LABELS_MAX)
        return ef_err_set(err, EF_EINVAL, "%zu labels, more than %d", source->label_count,
                          EF_WIRE_LABELS_MAX);
    ef_batch_borrow_source(source, &borrowed);
    for (size_t i = 0; i < source->label_count; i++) {
        if (source->label_names[i] == NULL || source->label_values[i] == NULL)
            return ef_err_set(err, EF_EINVAL, "label %zu has no name or value", i);
    }
    batch.n_sources = 1;
    batch.sources = &sources;
    batch.n_fragments = fragment != NULL;
    batch.fragments = &fragment;
    batch.n_usages = usage != NULL;
    batch.usages = &usage;
    rc = ef_wire_check(EF_WIRE_BATCH, &batch.base, false, err);
    if (rc == EF_ECORRUPT) {
        rc = EF_EINVAL;
        if (err != NULL)
            err->rc = rc;
    }
    return rc;
}

/* ---- fragments ---- */

static bool
reserve_rows(struct ef_batch *batch, size_t count)
{
    uint32_t *rows;

    if (count <= batch->row_cap)
        return true;
    rows = realloc(batch->rows, count * sizeof(*rows));
    if (rows == NULL)
        return false;
    batch->rows = rows;
    batch->row_cap = count;
    return true;
}

/* Gives each sample its row; rows are numbered by first appearance. */
static bool
assign_rows(struct ef_batch *batch, const uint64_t *hashes, size_t count, size_t *ret_rows)
{
    size_t rows = 0;

    ef_map_clear(&batch->places);
    for (size_t i = 0; i < count; i++) {
        bool is_new;
        uint64_t *place = ef_map_upsert(&batch->places, hashes[i], &is_new);
        if (place == NULL)
            return false;
        if (is_new)
            *place = rows++;
        batch->rows[i] = (uint32_t)*place;
    }
    *ret_rows = rows;
    return true;
}

/* Ticks come in the order of samples and leave in the order of rows. */
static bool
copy_ticks(struct ef_batch *batch, const struct ef_fragment *fragment,
           Everflame__V1__Fragment *copy)
{
    uint64_t *next = take(&batch->arena, copy->n_stack * sizeof(*next));
    uint64_t at = 0;

    copy->tick_ms = take(&batch->arena, fragment->tick_count * sizeof(uint32_t));
    if (next == NULL || copy->tick_ms == NULL)
        return false;
    for (size_t i = 0; i < copy->n_stack; i++) {
        next[i] = at;
        at += copy->count[i];
    }
    copy->n_tick_ms = fragment->tick_count;
    at = 0;
    for (size_t i = 0; i < fragment->sample_count; i++) {
        for (uint64_t k = 0; k < fragment->samples[i].count; k++)
            copy->tick_ms[next[batch->rows[i]]++] = fragment->tick_ms[at++];
    }
    return true;
}

static void
copy_numbers(const struct ef_fragment *fragment, Everflame__V1__Fragment *copy)
{
    everflame__v1__fragment__init(copy);
    copy->profile_type = (Everflame__V1__ProfileType)fragment->profile_type;
    copy->stratum = (Everflame__V1__Stratum)fragment->stratum;
    copy->start_ns = fragment->start_ns;
    copy->span_ns = fragment->span_ns;
    copy->interval = fragment->interval;
    copy->interval_measured = fragment->interval_measured;
    copy->weight_milli = fragment->weight_milli;
    copy->heap_used_bytes = fragment->heap_used_bytes;
    copy->heap_limit_bytes = fragment->heap_limit_bytes;
    copy->pause_ns = fragment->pause_ns;
}

/* Sums counts and values by row; the collector computes values that are count × interval itself. */
static ef_rc
sum_rows(struct ef_batch *batch, const struct ef_fragment *fragment, const uint64_t *hashes,
         Everflame__V1__Fragment *copy, struct ef_err *err)
{
    bool implied = true;

    memset(copy->count, 0, copy->n_stack * sizeof(*copy->count));
    memset(copy->value, 0, copy->n_stack * sizeof(*copy->value));
    for (size_t i = 0; i < fragment->sample_count; i++) {
        uint32_t row = batch->rows[i];
        copy->stack[row] = hashes[i];
        if (__builtin_add_overflow(copy->count[row], fragment->samples[i].count,
                                   &copy->count[row]) ||
            __builtin_add_overflow(copy->value[row], fragment->samples[i].value, &copy->value[row]))
            return ef_err_set(err, EF_EINVAL, "sum of counts or values overflows");
    }
    for (size_t i = 0; i < copy->n_stack && implied; i++) {
        int64_t value;
        implied = !__builtin_mul_overflow(copy->count[i], fragment->interval, &value) &&
                  value == copy->value[i];
    }
    copy->n_value = implied ? 0 : copy->n_stack;
    return EF_OK;
}

ef_rc
ef_batch_make_fragment(struct ef_batch *batch, const struct ef_fragment *fragment,
                       const uint64_t *hashes, Everflame__V1__Fragment **ret_fragment,
                       struct ef_err *err)
{
    Everflame__V1__Fragment *copy = take(&batch->arena, sizeof(*copy));
    size_t rows;
    ef_rc rc;

    if (copy == NULL || !reserve_rows(batch, fragment->sample_count) ||
        !assign_rows(batch, hashes, fragment->sample_count, &rows))
        return no_memory(err);
    copy_numbers(fragment, copy);
    copy->n_stack = copy->n_count = rows;
    copy->stack = take(&batch->arena, rows * sizeof(uint64_t));
    copy->count = take(&batch->arena, rows * sizeof(uint64_t));
    copy->value = take(&batch->arena, rows * sizeof(int64_t));
    if (copy->stack == NULL || copy->count == NULL || copy->value == NULL)
        return no_memory(err);
    rc = sum_rows(batch, fragment, hashes, copy, err);
    if (rc == EF_OK && fragment->tick_count > 0 && !copy_ticks(batch, fragment, copy))
        rc = no_memory(err);
    if (rc == EF_OK)
        *ret_fragment = copy;
    return rc;
}

ef_rc
ef_batch_add_fragment(struct ef_batch *batch, const struct ef_source *source,
                      Everflame__V1__Fragment *fragment, struct ef_err *err)
{
    ef_rc rc = find_source(batch, source, &fragment->source, err);

    if (rc != EF_OK)
        return rc;
    batch->fragments[batch->fragment_count++] = fragment;
    batch->wire_bytes += packed_bytes(fragment);
    for (size_t i = 0; i < fragment->n_count; i++)
        batch->samples += fragment->count[i];
    return EF_OK;
}

ef_rc
ef_batch_add_usage(struct ef_batch *batch, const struct ef_usage *usage, struct ef_err *err)
{
    Everflame__V1__Usage *copy = take(&batch->arena, sizeof(*copy));
    ef_rc rc;

    if (copy == NULL)
        return no_memory(err);
    everflame__v1__usage__init(copy);
    rc = find_source(batch, &usage->source, &copy->source, err);
    if (rc != EF_OK)
        return rc;
    copy->start_ns = usage->start_ns;
    copy->span_ns = usage->span_ns;
    copy->cpu_ns = usage->cpu_ns;
    copy->hot_span_ns = usage->hot_span_ns;
    copy->hot_cpu_ns = usage->hot_cpu_ns;
    copy->isolates = usage->isolates;
    batch->usages[batch->usage_count++] = copy;
    batch->wire_bytes += packed_bytes(copy);
    return EF_OK;
}

/* ---- definitions ---- */

/* Any source of the batch that names the version, or a new one without instance. */
static ef_rc
source_of_version(struct ef_batch *batch, const struct ef_dictionary_version *version,
                  uint32_t *ret_index, struct ef_err *err)
{
    struct ef_source source = {
        .account = version->account, .worker = version->worker, .version = version->version};

    for (size_t i = 0; i < batch->source_count; i++) {
        const Everflame__V1__Source *at = batch->sources[i];
        if (strcmp(at->version, version->version) == 0 &&
            strcmp(at->worker, version->worker) == 0 &&
            strcmp(at->account, version->account) == 0) {
            *ret_index = (uint32_t)i;
            return EF_OK;
        }
    }
    if (batch->source_count == EF_BATCH_ITEMS_MAX)
        return ef_err_set(err, EF_ELIMIT, "more than %u sources", EF_BATCH_ITEMS_MAX);
    return find_source(batch, &source, ret_index, err);
}

static ef_rc
fill_functions(struct ef_wire_arena *arena, const struct ef_dictionary_version *version,
               Everflame__V1__Definitions *ret, struct ef_err *err)
{
    size_t count = version->pending_functions.count;

    ret->function_hash = take(arena, count * sizeof(uint64_t));
    ret->function_name = take(arena, count * sizeof(char *));
    ret->function_file = take(arena, count * sizeof(char *));
    ret->function_line = take(arena, count * sizeof(uint32_t));
    if (ret->function_hash == NULL || ret->function_name == NULL || ret->function_file == NULL ||
        ret->function_line == NULL)
        return no_memory(err);
    ret->n_function_hash = ret->n_function_name = ret->n_function_file = ret->n_function_line =
        count;
    for (size_t i = 0; i < count; i++) {
        const struct ef_dictionary_function *function =
            &version->functions[version->pending_functions.index[i]];
        ret->function_hash[i] = function->hash;
        ret->function_name[i] = function->name;
        ret->function_file[i] = function->file;
        ret->function_line[i] = function->line;
    }
    return EF_OK;
}

static ef_rc
fill_stacks(struct ef_wire_arena *arena, const struct ef_dictionary_version *version,
            Everflame__V1__Definitions *ret, struct ef_err *err)
{
    size_t count = version->pending_stacks.count;

    ret->stack_hash = take(arena, count * sizeof(uint64_t));
    ret->stack_parent = take(arena, count * sizeof(uint64_t));
    ret->stack_function = take(arena, count * sizeof(uint64_t));
    ret->stack_line = take(arena, count * sizeof(uint32_t));
    if (ret->stack_hash == NULL || ret->stack_parent == NULL || ret->stack_function == NULL ||
        ret->stack_line == NULL)
        return no_memory(err);
    ret->n_stack_hash = ret->n_stack_parent = ret->n_stack_function = ret->n_stack_line = count;
    for (size_t i = 0; i < count; i++) {
        const struct ef_dictionary_stack *stack =
            &version->stacks[version->pending_stacks.index[i]];
        ret->stack_hash[i] = stack->hash;
        ret->stack_parent[i] = stack->parent;
        ret->stack_function[i] = stack->function;
        ret->stack_line[i] = stack->line;
    }
    return EF_OK;
}

static ef_rc
fill_definitions(struct ef_batch *batch, const struct ef_dictionary *dictionary,
                 Everflame__V1__Batch *ret, struct ef_err *err)
{
    ret->definitions = take(&batch->arena, dictionary->version_count * sizeof(void *));
    if (ret->definitions == NULL)
        return no_memory(err);
    for (size_t i = 0; i < dictionary->version_count; i++) {
        const struct ef_dictionary_version *version = dictionary->versions[i];
        Everflame__V1__Definitions *definitions;
        ef_rc rc;
        if (version->pending_stacks.count == 0 && version->pending_functions.count == 0)
            continue;
        definitions = take(&batch->arena, sizeof(*definitions));
        if (definitions == NULL)
            return no_memory(err);
        everflame__v1__definitions__init(definitions);
        rc = source_of_version(batch, version, &definitions->source, err);
        if (rc == EF_OK)
            rc = fill_functions(&batch->arena, version, definitions, err);
        if (rc == EF_OK)
            rc = fill_stacks(&batch->arena, version, definitions, err);
        if (rc != EF_OK)
            return rc;
        ret->definitions[ret->n_definitions++] = definitions;
    }
    return EF_OK;
}

ef_rc
ef_batch_pack(struct ef_batch *batch, const struct ef_dictionary *dictionary,
              const struct ef_wire_keys *keys, struct ef_wire_header *header, struct ef_buf *out,
              struct ef_err *err)
{
    Everflame__V1__Batch message = EVERFLAME__V1__BATCH__INIT;
    ef_rc rc = fill_definitions(batch, dictionary, &message, err);

    if (rc != EF_OK)
        return rc;
    message.n_sources = batch->source_count;
    message.sources = batch->sources;
    message.n_fragments = batch->fragment_count;
    message.fragments = batch->fragments;
    message.n_usages = batch->usage_count;
    message.usages = batch->usages;
    header->kind = EF_WIRE_BATCH;
    return ef_wire_encode(keys, header, &message.base, out, err);
}
