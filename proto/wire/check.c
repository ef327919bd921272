/*
 * Decides which messages are good. Must not know about headers, keys or compression. Any thread.
 */
#include "proto/wire/check.h"

#include "proto/base/utf8.h"
#include "proto/wire/arena.h"

#include <math.h>
#include <string.h>

#define EPOCHS_MAX 4096u  /* lives of one publisher that still hold something */
#define LOST_MAX 65536u   /* per epoch; the publisher itself merges above 16,384 */
#define TARGETS_MAX 1024u /* as publisher.h promises */
#define RANGES_MAX 65536u /* missing ranges per epoch */
#define WANTED_MAX 65536u /* stacks of one reply, all versions together */
#define DIRECTIVES_MAX 4096u

/* Where we are, so that texts say which element is bad. */
struct check {
    bool in_arena;
    size_t definitions, stacks; /* of the whole batch */
    struct ef_err *err;
};

static ef_rc
bad(struct check *check, const char *where, size_t index, const char *what)
{
    return ef_err_set(check->err, EF_ECORRUPT, "%s %zu: %s", where, index, what);
}

static ef_rc
too_many(struct check *check, const char *what, size_t count, size_t count_max)
{
    return ef_err_set(check->err, EF_ELIMIT, "%zu %s, more than %zu", count, what, count_max);
}

static size_t
text_len(const struct check *check, const char *text)
{
    if (text == NULL || text == protobuf_c_empty_string)
        return 0;
    if (!check->in_arena)
        return strlen(text);
    return ef_wire_arena_size(text) - 1; /* protobuf-c adds one byte for the final NUL */
}

/*
 * True when every byte is printable ASCII, as nearly all names are: eight bytes at a time, since
 * the byte loops of ef_name_valid were a fifth of a decode (measured with 20 sources a batch).
 */
static bool
plain(const char *text, size_t len)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t odd = 0;
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, text + i, 8);
        /* A byte's top bit appears when the byte is >= 0x80, < 0x20, or 0x7f. */
        odd |= word | (word - ones * 0x20) | (word + ones);
    }
    odd &= ones * 0x80;
    for (; i < len; i++)
        odd |= (uint64_t)((uint8_t)(text[i] - 0x20) >= 0x7f - 0x20);
    return odd == 0;
}

static bool
name_good(const struct check *check, const char *text)
{
    size_t len = text_len(check, text);

    if (len > 0 && len <= EF_WIRE_NAME_BYTES_MAX && plain(text, len))
        return true;
    return ef_name_valid(text, len, EF_WIRE_NAME_BYTES_MAX);
}

static bool
name_good_or_empty(const struct check *check, const char *text)
{
    return text_len(check, text) == 0 || name_good(check, text);
}

static bool
text_good(const struct check *check, const char *text)
{
    size_t len = text_len(check, text);

    return len <= EF_WIRE_TEXT_BYTES_MAX && (plain(text, len) || ef_utf8_valid(text, len));
}

/* A span on the wall clock whose end is still an int64. */
static bool
span_good(int64_t start_ns, uint64_t span_ns)
{
    return start_ns >= 0 && span_ns <= (uint64_t)(INT64_MAX - start_ns);
}

/* `required`: a target of an agent may not be known yet. */
static ef_rc
check_source(struct check *check, const Everflame__V1__Source *source, const char *where,
             size_t index, bool required)
{
    if (required && (!name_good(check, source->account) || !name_good(check, source->worker) ||
                     !name_good(check, source->version)))
        return bad(check, where, index, "account, worker or version is not a name");
    if (!name_good_or_empty(check, source->account) || !name_good_or_empty(check, source->worker) ||
        !name_good_or_empty(check, source->version) ||
        !name_good_or_empty(check, source->instance) || !name_good_or_empty(check, source->host) ||
        !name_good_or_empty(check, source->region) || !name_good_or_empty(check, source->runtime))
        return bad(check, where, index, "not a name of at most 128 bytes");
    if (source->n_label_names != source->n_label_values)
        return bad(check, where, index, "label names and values differ in number");
    if (source->n_label_names > EF_WIRE_LABELS_MAX)
        return too_many(check, "labels", source->n_label_names, EF_WIRE_LABELS_MAX);
    for (size_t i = 0; i < source->n_label_names; i++) {
        if (!name_good(check, source->label_names[i]) ||
            !name_good_or_empty(check, source->label_values[i]))
            return bad(check, where, index, "a label is not a name");
    }
    return EF_OK;
}

static ef_rc
check_functions(struct check *check, const Everflame__V1__Definitions *definitions, size_t index)
{
    size_t count = definitions->n_function_hash;

    if (definitions->n_function_name != count || definitions->n_function_file != count ||
        definitions->n_function_line != count)
        return bad(check, "definitions", index, "columns of functions differ in length");
    check->definitions += count;
    if (check->definitions > EF_WIRE_DEFINITIONS_MAX)
        return too_many(check, "functions", check->definitions, EF_WIRE_DEFINITIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (definitions->function_hash[i] == 0)
            return bad(check, "definitions", index, "a function hash is 0");
        if (!text_good(check, definitions->function_name[i]) ||
            !text_good(check, definitions->function_file[i]))
            return bad(check, "definitions", index,
                       "a function name or file is not UTF-8 of at most 4096 bytes");
    }
    return EF_OK;
}

static ef_rc
check_stacks(struct check *check, const Everflame__V1__Definitions *definitions, size_t index)
{
    size_t count = definitions->n_stack_hash;

    if (definitions->n_stack_parent != count || definitions->n_stack_function != count ||
        definitions->n_stack_line != count)
        return bad(check, "definitions", index, "columns of stacks differ in length");
    check->stacks += count;
    if (check->stacks > EF_WIRE_DEFINITIONS_MAX)
        return too_many(check, "stacks", check->stacks, EF_WIRE_DEFINITIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (definitions->stack_hash[i] == 0 || definitions->stack_function[i] == 0)
            return bad(check, "definitions", index, "a stack or its function is 0");
        if (definitions->stack_hash[i] == definitions->stack_parent[i])
            return bad(check, "definitions", index, "a stack is its own caller");
    }
    return EF_OK;
}

static ef_rc
check_definitions(struct check *check, const Everflame__V1__Batch *batch)
{
    for (size_t i = 0; i < batch->n_definitions; i++) {
        const Everflame__V1__Definitions *definitions = batch->definitions[i];
        ef_rc rc;
        if (definitions->source >= batch->n_sources)
            return bad(check, "definitions", i, "no such source");
        rc = check_functions(check, definitions, i);
        if (rc == EF_OK)
            rc = check_stacks(check, definitions, i);
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

/* Fragments and usages come from an instance; definitions need none. */
static bool
has_instance(const struct check *check, const Everflame__V1__Batch *batch, uint32_t source)
{
    return source < batch->n_sources && text_len(check, batch->sources[source]->instance) > 0;
}

/* Checks the columns and gives the sum of the counts. */
static ef_rc
check_samples(struct check *check, const Everflame__V1__Fragment *fragment, size_t index,
              uint64_t *ret_samples)
{
    uint64_t samples = 0, zeros = 0;
    int64_t value = 0;

    for (size_t i = 0; i < fragment->n_stack; i++) {
        zeros |= (uint64_t)(fragment->stack[i] == 0) | (uint64_t)(fragment->count[i] == 0);
        if (__builtin_add_overflow(samples, fragment->count[i], &samples))
            return bad(check, "fragment", index, "sum of counts overflows");
    }
    if (zeros != 0)
        return bad(check, "fragment", index, "a stack or count is 0");
    for (size_t i = 0; i < fragment->n_value; i++) {
        if (fragment->value[i] < 0 || __builtin_add_overflow(value, fragment->value[i], &value))
            return bad(check, "fragment", index, "a value is negative or their sum overflows");
    }
    /* The collector multiplies when values are absent. */
    if (samples > INT64_MAX ||
        (fragment->n_value == 0 && __builtin_mul_overflow(samples, fragment->interval, &value)))
        return bad(check, "fragment", index, "count times interval overflows");
    *ret_samples = samples;
    return EF_OK;
}

static ef_rc
check_fragment(struct check *check, const Everflame__V1__Batch *batch, size_t index)
{
    const Everflame__V1__Fragment *fragment = batch->fragments[index];
    uint64_t samples = 0;
    ef_rc rc;

    if (!has_instance(check, batch, fragment->source))
        return bad(check, "fragment", index, "no such source, or one without instance");
    if (fragment->profile_type < EVERFLAME__V1__PROFILE_TYPE__CPU ||
        fragment->profile_type > EVERFLAME__V1__PROFILE_TYPE__WALL)
        return bad(check, "fragment", index, "unknown profile type");
    if (fragment->stratum != EVERFLAME__V1__STRATUM__NORMAL &&
        fragment->stratum != EVERFLAME__V1__STRATUM__HOT)
        return bad(check, "fragment", index, "unknown stratum");
    if (!span_good(fragment->start_ns, fragment->span_ns))
        return bad(check, "fragment", index, "start or span out of range");
    if (fragment->n_count != fragment->n_stack ||
        (fragment->n_value != 0 && fragment->n_value != fragment->n_stack))
        return bad(check, "fragment", index, "columns of stacks differ in length");
    if (fragment->n_stack > EF_WIRE_PAIRS_MAX)
        return too_many(check, "stacks in a fragment", fragment->n_stack, EF_WIRE_PAIRS_MAX);
    rc = check_samples(check, fragment, index, &samples);
    if (rc != EF_OK)
        return rc;
    if (fragment->n_tick_ms != 0 && fragment->n_tick_ms != samples)
        return bad(check, "fragment", index, "not one tick for each sample");
    if (fragment->n_tick_ms != 0 && !span_good(fragment->start_ns, UINT32_MAX * UINT64_C(1000000)))
        return bad(check, "fragment", index, "start too late for ticks");
    return EF_OK;
}

static ef_rc
check_usage(struct check *check, const Everflame__V1__Batch *batch, size_t index)
{
    const Everflame__V1__Usage *usage = batch->usages[index];

    if (!has_instance(check, batch, usage->source))
        return bad(check, "usage", index, "no such source, or one without instance");
    if (!span_good(usage->start_ns, usage->span_ns))
        return bad(check, "usage", index, "start or span out of range");
    if (usage->cpu_ns > INT64_MAX || usage->hot_cpu_ns > usage->cpu_ns ||
        usage->hot_span_ns > usage->span_ns)
        return bad(check, "usage", index, "hot part larger than the whole, or CPU out of range");
    return EF_OK;
}

static ef_rc
check_batch(struct check *check, const Everflame__V1__Batch *batch)
{
    ef_rc rc = EF_OK;

    if (batch->n_sources > EF_WIRE_FRAGMENTS_MAX)
        return too_many(check, "sources", batch->n_sources, EF_WIRE_FRAGMENTS_MAX);
    if (batch->n_definitions > EF_WIRE_FRAGMENTS_MAX)
        return too_many(check, "definitions", batch->n_definitions, EF_WIRE_FRAGMENTS_MAX);
    if (batch->n_fragments > EF_WIRE_FRAGMENTS_MAX)
        return too_many(check, "fragments", batch->n_fragments, EF_WIRE_FRAGMENTS_MAX);
    if (batch->n_usages > EF_WIRE_FRAGMENTS_MAX)
        return too_many(check, "usages", batch->n_usages, EF_WIRE_FRAGMENTS_MAX);
    for (size_t i = 0; i < batch->n_sources && rc == EF_OK; i++)
        rc = check_source(check, batch->sources[i], "source", i, true);
    if (rc == EF_OK)
        rc = check_definitions(check, batch);
    for (size_t i = 0; i < batch->n_fragments && rc == EF_OK; i++)
        rc = check_fragment(check, batch, i);
    for (size_t i = 0; i < batch->n_usages && rc == EF_OK; i++)
        rc = check_usage(check, batch, i);
    return rc;
}

static ef_rc
check_lost(struct check *check, const Everflame__V1__EpochState *epoch, size_t index)
{
    const Everflame__V1__Lost *lost = epoch->lost;

    if (lost == NULL)
        return EF_OK;
    if (lost->n_fragments != lost->n_sequence || lost->n_samples != lost->n_sequence)
        return bad(check, "epoch", index, "columns of losses differ in length");
    if (lost->n_sequence > LOST_MAX)
        return too_many(check, "losses", lost->n_sequence, LOST_MAX);
    for (size_t i = 0; i < lost->n_sequence; i++) {
        if (lost->sequence[i] == 0 || lost->sequence[i] > epoch->last_sequence ||
            (i > 0 && lost->sequence[i] <= lost->sequence[i - 1]))
            return bad(check, "epoch", index, "losses out of range or order");
    }
    return EF_OK;
}

static ef_rc
check_epoch(struct check *check, const Everflame__V1__EpochState *epoch, size_t index)
{
    if (epoch->first_sequence == 0 || epoch->last_sequence == UINT64_MAX ||
        epoch->first_sequence > epoch->last_sequence + 1)
        return bad(check, "epoch", index, "first sequence after the last");
    return check_lost(check, epoch, index);
}

static ef_rc
check_target(struct check *check, const Everflame__V1__TargetStatus *target, size_t index)
{
    if (target->source == NULL)
        return bad(check, "target", index, "no source");
    if (!text_good(check, target->inspector) || !text_good(check, target->state) ||
        !text_good(check, target->message))
        return bad(check, "target", index, "a text is not UTF-8 of at most 4096 bytes");
    if (!isfinite(target->cpu_ratio) || !isfinite(target->pause_ms_max) ||
        !isfinite(target->pause_ratio) || !isfinite(target->process_cpu_ratio))
        return bad(check, "target", index, "a number is not finite");
    return check_source(check, target->source, "target", index, false);
}

static ef_rc
check_request(struct check *check, const Everflame__V1__SyncRequest *request)
{
    ef_rc rc = EF_OK;

    if (request->n_epochs > EPOCHS_MAX)
        return too_many(check, "epochs", request->n_epochs, EPOCHS_MAX);
    if (request->n_targets > TARGETS_MAX)
        return too_many(check, "targets", request->n_targets, TARGETS_MAX);
    if (request->now_ns < 0 || !name_good_or_empty(check, request->name))
        return bad(check, "request", 0, "time before 1970 or bad name");
    for (size_t i = 0; i < request->n_epochs && rc == EF_OK; i++)
        rc = check_epoch(check, request->epochs[i], i);
    for (size_t i = 0; i < request->n_targets && rc == EF_OK; i++)
        rc = check_target(check, request->targets[i], i);
    return rc;
}

static ef_rc
check_epoch_reply(struct check *check, const Everflame__V1__EpochReply *epoch, size_t index)
{
    if (epoch->n_missing_first != epoch->n_missing_last)
        return bad(check, "epoch", index, "columns of ranges differ in length");
    if (epoch->n_missing_first > RANGES_MAX)
        return too_many(check, "missing ranges", epoch->n_missing_first, RANGES_MAX);
    for (size_t i = 0; i < epoch->n_missing_first; i++) {
        if (epoch->missing_first[i] == 0 || epoch->missing_first[i] > epoch->missing_last[i])
            return bad(check, "epoch", index, "missing range ends before it begins");
    }
    return EF_OK;
}

static ef_rc
check_wanted(struct check *check, const Everflame__V1__Wanted *wanted, size_t index)
{
    check->stacks += wanted->n_stack_hash;
    if (check->stacks > WANTED_MAX)
        return too_many(check, "wanted stacks", check->stacks, WANTED_MAX);
    if (!name_good(check, wanted->account) || !name_good(check, wanted->worker) ||
        !name_good(check, wanted->version))
        return bad(check, "wanted", index, "account, worker or version is not a name");
    return EF_OK;
}

/* An unknown kind is ignored by the receiver, so that old publishers work with new collectors. */
static ef_rc
check_directive(struct check *check, const Everflame__V1__Directive *directive, size_t index)
{
    if (!name_good_or_empty(check, directive->id) ||
        !name_good_or_empty(check, directive->account) ||
        !name_good_or_empty(check, directive->worker) ||
        !name_good_or_empty(check, directive->version))
        return bad(check, "directive", index, "not a name of at most 128 bytes");
    return EF_OK;
}

static ef_rc
check_reply(struct check *check, const Everflame__V1__SyncReply *reply)
{
    ef_rc rc = EF_OK;

    if (reply->n_epochs > EPOCHS_MAX)
        return too_many(check, "epochs", reply->n_epochs, EPOCHS_MAX);
    if (reply->n_wanted > WANTED_MAX)
        return too_many(check, "versions wanted", reply->n_wanted, WANTED_MAX);
    if (reply->n_directives > DIRECTIVES_MAX)
        return too_many(check, "directives", reply->n_directives, DIRECTIVES_MAX);
    for (size_t i = 0; i < reply->n_epochs && rc == EF_OK; i++)
        rc = check_epoch_reply(check, reply->epochs[i], i);
    for (size_t i = 0; i < reply->n_wanted && rc == EF_OK; i++)
        rc = check_wanted(check, reply->wanted[i], i);
    for (size_t i = 0; i < reply->n_directives && rc == EF_OK; i++)
        rc = check_directive(check, reply->directives[i], i);
    return rc;
}

ef_rc
ef_wire_check(enum ef_wire_kind kind, const ProtobufCMessage *message, bool in_arena,
              struct ef_err *err)
{
    struct check check = {.in_arena = in_arena, .err = err};

    switch (kind) {
    case EF_WIRE_BATCH:
        return check_batch(&check, (const Everflame__V1__Batch *)message);
    case EF_WIRE_SYNC_REQUEST:
        return check_request(&check, (const Everflame__V1__SyncRequest *)message);
    case EF_WIRE_SYNC_REPLY:
        return check_reply(&check, (const Everflame__V1__SyncReply *)message);
    }
    return ef_err_set(err, EF_ECORRUPT, "unknown kind of message %d", (int)kind);
}
