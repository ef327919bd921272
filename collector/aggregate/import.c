/*
 * Turns a whole profile into a batch of one fragment with its definitions, and applies it as one
 * that nobody numbers. Any thread; takes the lock only in apply.c.
 */
#include "collector/aggregate/internal.h"

#include "proto/model/hash.h"

#include <stdlib.h>
#include <string.h>

/* All arrays in one place, so that they are freed together. */
struct draft {
    const struct ef_profile *profile;
    uint64_t *hashes; /* of nodes */
    bool *needed;     /* nodes that have samples below */
    uint64_t *frame_hashes;
    char **frame_names; /* for frames without function */
    Everflame__V1__Definitions definitions;
    Everflame__V1__Fragment fragment;
};

static bool
open_columns(struct draft *draft)
{
    size_t nodes = (size_t)draft->profile->node_count + 1;
    size_t frames = (size_t)draft->profile->frame_count + 1;
    Everflame__V1__Definitions *d = &draft->definitions;

    draft->hashes = calloc(nodes, sizeof(*draft->hashes));
    draft->needed = calloc(nodes, sizeof(*draft->needed));
    draft->frame_hashes = calloc(frames, sizeof(*draft->frame_hashes));
    draft->frame_names = calloc(frames, sizeof(*draft->frame_names));
    d->function_hash = calloc(frames, sizeof(uint64_t));
    d->function_name = calloc(frames, sizeof(char *));
    d->function_file = calloc(frames, sizeof(char *));
    d->function_line = calloc(frames, sizeof(uint32_t));
    d->stack_hash = calloc(nodes, sizeof(uint64_t));
    d->stack_parent = calloc(nodes, sizeof(uint64_t));
    d->stack_function = calloc(nodes, sizeof(uint64_t));
    d->stack_line = calloc(nodes, sizeof(uint32_t));
    draft->fragment.stack = calloc(nodes, sizeof(uint64_t));
    draft->fragment.count = calloc(nodes, sizeof(uint64_t));
    draft->fragment.value = calloc(nodes, sizeof(int64_t));
    return draft->hashes != NULL && draft->needed != NULL && draft->frame_hashes != NULL &&
           draft->frame_names != NULL && d->function_hash != NULL && d->function_name != NULL &&
           d->function_file != NULL && d->function_line != NULL && d->stack_hash != NULL &&
           d->stack_parent != NULL && d->stack_function != NULL && d->stack_line != NULL &&
           draft->fragment.stack != NULL && draft->fragment.count != NULL &&
           draft->fragment.value != NULL;
}

static void
draft_fini(struct draft *draft)
{
    Everflame__V1__Definitions *d = &draft->definitions;

    for (uint32_t i = 0; draft->frame_names != NULL && i < draft->profile->frame_count; i++)
        free(draft->frame_names[i]);
    free(draft->hashes);
    free(draft->needed);
    free(draft->frame_hashes);
    free(draft->frame_names);
    free(d->function_hash);
    free(d->function_name);
    free(d->function_file);
    free(d->function_line);
    free(d->stack_hash);
    free(d->stack_parent);
    free(d->stack_function);
    free(d->stack_line);
    free(draft->fragment.stack);
    free(draft->fragment.count);
    free(draft->fragment.value);
}

/* ---- definitions ---- */

/* Defines the function of a frame, once; a frame without one by its address (ef_profile_hashes has
 * the same rule). */
static ef_rc
define_frame(struct draft *draft, uint32_t frame_id, struct ef_err *err)
{
    const struct ef_profile *profile = draft->profile;
    const struct ef_profile_frame *frame = &profile->frames[frame_id];
    const struct ef_profile_function *function = &profile->functions[frame->function];
    Everflame__V1__Definitions *d = &draft->definitions;
    size_t i = d->n_function_hash;
    char text[EF_PROFILE_FRAME_NAME_MAX];

    if (draft->frame_hashes[frame_id] != 0)
        return EF_OK;
    if (frame->function != 0) {
        d->function_name[i] = (char *)(uintptr_t)ef_profile_string(profile, function->name);
        d->function_file[i] = (char *)(uintptr_t)ef_profile_string(profile, function->file);
        d->function_line[i] = function->start_line;
    } else {
        draft->frame_names[frame_id] =
            strdup(ef_profile_frame_name(profile, frame_id, text, sizeof(text)));
        if (draft->frame_names[frame_id] == NULL)
            return ef_err_set(err, EF_ENOMEM, "no memory for a frame's name");
        d->function_name[i] = draft->frame_names[frame_id];
        d->function_file[i] =
            (char *)(uintptr_t)ef_profile_string(profile, profile->mappings[frame->mapping].file);
    }
    draft->frame_hashes[frame_id] =
        ef_function_hash(d->function_name[i], strlen(d->function_name[i]), d->function_file[i],
                         strlen(d->function_file[i]), d->function_line[i]);
    d->function_hash[i] = draft->frame_hashes[frame_id];
    d->n_function_hash = i + 1;
    return EF_OK;
}

static ef_rc
define_nodes(struct draft *draft, struct ef_err *err)
{
    const struct ef_profile *profile = draft->profile;
    Everflame__V1__Definitions *d = &draft->definitions;

    for (uint32_t node = 1; node < profile->node_count; node++) {
        const struct ef_profile_node *n = &profile->nodes[node];
        size_t i = d->n_stack_hash;
        ef_rc rc;
        if (!draft->needed[node])
            continue;
        rc = define_frame(draft, n->frame, err);
        if (rc != EF_OK)
            return rc;
        d->stack_parent[i] = draft->hashes[n->parent];
        d->stack_function[i] = draft->frame_hashes[n->frame];
        d->stack_line[i] = profile->frames[n->frame].line;
        draft->hashes[node] =
            ef_stack_hash(d->stack_parent[i], d->stack_function[i], d->stack_line[i]);
        d->stack_hash[i] = draft->hashes[node];
        d->n_stack_hash = i + 1;
    }
    return EF_OK;
}

/* ---- samples ---- */

struct amount {
    int64_t count, value;
};

static struct amount
amount_of(const struct ef_profile *profile, const struct ef_import *import, uint32_t node)
{
    const int64_t *values = &profile->values[(size_t)node * profile->type_count];
    int64_t interval = import->interval == 0 ? 1 : (int64_t)import->interval;
    struct amount amount = {0, 0};

    if (import->type_value >= 0)
        amount.value = values[import->type_value];
    if (import->type_count >= 0)
        amount.count = values[import->type_count];
    else if (amount.value > 0) /* to the nearest, but what was seen was seen once at least */
        amount.count = amount.value / interval + (amount.value % interval > (interval - 1) / 2);
    if (import->type_count < 0 && amount.value > 0 && amount.count == 0)
        amount.count = 1;
    return amount;
}

/* The root has no frame: what stands on it belongs to no stack, and cannot be kept as one. */
static ef_rc
collect_samples(struct draft *draft, const struct ef_import *import, struct ef_err *err)
{
    const struct ef_profile *profile = draft->profile;

    for (uint32_t node = profile->node_count; node-- > 0;) {
        struct amount amount = amount_of(profile, import, node);
        if (amount.count < 0 || amount.value < 0)
            return ef_err_set(err, EF_EINVAL,
                              "the profile has negative values: it is a difference, not a profile");
        if (node == 0 && (amount.count != 0 || amount.value != 0))
            return ef_err_set(err, EF_EINVAL, "the profile has samples without a stack");
        if (amount.count != 0 || amount.value != 0)
            draft->needed[node] = true;
        if (node > 0 && draft->needed[node])
            draft->needed[profile->nodes[node].parent] = true;
    }
    return EF_OK;
}

static void
fill_fragment(struct draft *draft, const struct ef_import *import)
{
    const struct ef_profile *profile = draft->profile;
    Everflame__V1__Fragment *fragment = &draft->fragment;

    for (uint32_t node = 1; node < profile->node_count; node++) {
        struct amount amount = amount_of(profile, import, node);
        if (amount.count == 0 && amount.value == 0)
            continue;
        fragment->stack[fragment->n_stack] = draft->hashes[node];
        fragment->count[fragment->n_stack] = (uint64_t)amount.count;
        fragment->value[fragment->n_stack] = amount.value;
        fragment->n_stack++;
    }
    fragment->n_count = fragment->n_stack;
    fragment->n_value = import->type_value >= 0 ? fragment->n_stack : 0;
    fragment->profile_type = (Everflame__V1__ProfileType)import->profile_type;
    fragment->start_ns = import->start_ns;
    fragment->span_ns = (uint64_t)import->duration_ns;
    fragment->interval = import->interval == 0 ? 1 : import->interval;
}

static ef_rc
check(const struct ef_aggregate *aggregate, const struct ef_profile *profile,
      const struct ef_import *import, int64_t now_ns, struct ef_err *err)
{
    int64_t retention_ns = (int64_t)aggregate->options.retention_ms * EF_NS_PER_MS;
    int types = (int)profile->type_count;

    if (import->profile_type == 0 || import->profile_type >= EF_TYPE_COUNT ||
        import->type_count >= types || import->type_value >= types ||
        (import->type_count < 0 && import->type_value < 0))
        return ef_err_set(err, EF_EINVAL, "no such profile or sample type");
    if (import->account[0] == '\0' || import->worker[0] == '\0' || import->version[0] == '\0')
        return ef_err_set(err, EF_EINVAL, "account, worker and version must not be empty");
    if (import->duration_ns < 0 || import->duration_ns > EF_SPAN_MAX_NS)
        return ef_err_set(err, EF_EINVAL, "a profile must not be longer than a day");
    if (import->interval > INT64_MAX)
        return ef_err_set(err, EF_EINVAL, "the sampling interval is too large");
    if (import->start_ns >= EF_CLOCK_MIN_NS &&
        import->start_ns + import->duration_ns < now_ns - retention_ns)
        return ef_err_set(err, EF_ELIMIT,
                          "the profile ends before the time that is kept: give another time");
    return EF_OK;
}

static char *
name(const char *text)
{
    return (char *)(uintptr_t)text; /* the generated structs know no const */
}

ef_rc
ef_aggregate_import(struct ef_aggregate *aggregate, const struct ef_profile *profile,
                    const struct ef_import *import, int64_t now_ns, struct ef_err *err)
{
    struct draft draft = {.profile = profile};
    Everflame__V1__Source source = EVERFLAME__V1__SOURCE__INIT;
    Everflame__V1__Batch batch = EVERFLAME__V1__BATCH__INIT;
    Everflame__V1__Source *sources[] = {&source};
    Everflame__V1__Definitions *definitions[] = {&draft.definitions};
    Everflame__V1__Fragment *fragments[] = {&draft.fragment};
    ef_rc rc = check(aggregate, profile, import, now_ns, err);

    if (rc != EF_OK)
        return rc;
    everflame__v1__definitions__init(&draft.definitions);
    everflame__v1__fragment__init(&draft.fragment);
    source.account = name(import->account);
    source.worker = name(import->worker);
    source.version = name(import->version);
    source.region = name(import->region);
    source.instance = name("import");
    rc = open_columns(&draft) ? EF_OK : ef_err_set(err, EF_ENOMEM, "no memory for an import");
    if (rc == EF_OK)
        rc = collect_samples(&draft, import, err);
    if (rc == EF_OK)
        rc = define_nodes(&draft, err);
    if (rc == EF_OK) {
        fill_fragment(&draft, import);
        batch.n_sources = batch.n_definitions = batch.n_fragments = 1;
        batch.sources = sources;
        batch.definitions = definitions;
        batch.fragments = fragments;
        rc = ef_apply_unnumbered(aggregate, &batch, now_ns, err);
    }
    if (rc != EF_OK)
        ef_err_prefix(err, "import of worker '%s'", import->worker);
    draft_fini(&draft);
    return rc;
}
