/*
 * Decides which definitions are new, which are forgotten, and what happens when there is no room.
 * Must not know about batches or the network. Runs in whatever thread holds the publisher's lock.
 */
#include "sampler/lib/dictionary.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/model/hash.h"
#include "proto/wire/wire.h"

/* Text of functions: 256 bytes a stack on average; profiles in the field have 30 to 90 a function.
 */
#define TEXT_BYTES_PER_STACK 256u
#define VERSION_IDLE_NS                                                                            \
    (600 * EF_NS_PER_S) /* chosen: a deployed version that is alive is seen sooner */
#define ANSWER_AGAIN_NS (5 * EF_NS_PER_S) /* chosen: several syncs and a resend */
#define STACK_WIRE_BYTES 30u
#define FUNCTION_WIRE_BYTES 24u /* without its text */

void
ef_dictionary_init(struct ef_dictionary *dictionary, size_t stacks_max,
                   void (*added)(void *arg, size_t bytes), void *arg)
{
    *dictionary =
        (struct ef_dictionary){.stacks_max = stacks_max,
                               .text_bytes_max = (uint64_t)stacks_max * TEXT_BYTES_PER_STACK,
                               .added = added,
                               .arg = arg};
}

static void
free_version(struct ef_dictionary *dictionary, struct ef_dictionary_version *version)
{
    dictionary->stack_count -= version->stack_count;
    dictionary->text_bytes -= version->text_bytes;
    for (size_t i = 0; i < version->function_count; i++)
        free(version->functions[i].name);
    ef_map_fini(&version->stack_map);
    ef_map_fini(&version->function_map);
    free(version->stacks);
    free(version->functions);
    free(version->pending_stacks.index);
    free(version->pending_functions.index);
    free(version->account);
    free(version);
}

void
ef_dictionary_fini(struct ef_dictionary *dictionary)
{
    for (size_t i = 0; i < dictionary->version_count; i++)
        free_version(dictionary, dictionary->versions[i]);
    free(dictionary->versions);
    *dictionary = (struct ef_dictionary){0};
}

static bool
is_pending(const struct ef_dictionary_version *version)
{
    return version->pending_stacks.count > 0 || version->pending_functions.count > 0;
}

/* Forgets the version that was not used for longest, if that is at least idle_ns. */
static bool
forget_oldest(struct ef_dictionary *dictionary, const struct ef_dictionary_version *keep,
              ef_mono_ns now, int64_t idle_ns)
{
    size_t oldest = dictionary->version_count;

    for (size_t i = 0; i < dictionary->version_count; i++) {
        const struct ef_dictionary_version *version = dictionary->versions[i];
        if (version == keep || is_pending(version) ||
            ef_mono_since(version->used, now).ns < idle_ns)
            continue;
        if (oldest == dictionary->version_count ||
            version->used.ns < dictionary->versions[oldest]->used.ns)
            oldest = i;
    }
    if (oldest == dictionary->version_count)
        return false;
    free_version(dictionary, dictionary->versions[oldest]);
    dictionary->versions[oldest] = dictionary->versions[--dictionary->version_count];
    return true;
}

struct ef_dictionary_version *
ef_dictionary_find(const struct ef_dictionary *dictionary, const char *account, const char *worker,
                   const char *version)
{
    for (size_t i = 0; i < dictionary->version_count; i++) {
        struct ef_dictionary_version *at = dictionary->versions[i];
        if (strcmp(at->version, version) == 0 && strcmp(at->worker, worker) == 0 &&
            strcmp(at->account, account) == 0)
            return at;
    }
    return NULL;
}

static struct ef_dictionary_version *
make_version(const char *account, const char *worker, const char *version)
{
    struct ef_dictionary_version *made = calloc(1, sizeof(*made));
    size_t account_bytes = strlen(account) + 1, worker_bytes = strlen(worker) + 1;
    size_t version_bytes = strlen(version) + 1;

    if (made == NULL)
        return NULL;
    made->account = malloc(account_bytes + worker_bytes + version_bytes);
    if (made->account == NULL) {
        free(made);
        return NULL;
    }
    made->worker = made->account + account_bytes;
    made->version = made->worker + worker_bytes;
    memcpy(made->account, account, account_bytes);
    memcpy(made->worker, worker, worker_bytes);
    memcpy(made->version, version, version_bytes);
    ef_map_init(&made->stack_map, SIZE_MAX / 64);
    ef_map_init(&made->function_map, SIZE_MAX / 64);
    return made;
}

ef_rc
ef_dictionary_version(struct ef_dictionary *dictionary, const char *account, const char *worker,
                      const char *version, ef_mono_ns now,
                      struct ef_dictionary_version **ret_version, struct ef_err *err)
{
    struct ef_dictionary_version *found = ef_dictionary_find(dictionary, account, worker, version);
    struct ef_dictionary_version **versions;

    if (found == NULL) {
        if (dictionary->version_count == EF_DICTIONARY_VERSIONS_MAX &&
            !forget_oldest(dictionary, NULL, now, 0))
            return ef_err_set(err, EF_ELIMIT, "more than %u worker versions",
                              EF_DICTIONARY_VERSIONS_MAX);
        found = make_version(account, worker, version);
        versions = realloc(dictionary->versions, (dictionary->version_count + 1) *
                                                     sizeof(struct ef_dictionary_version *));
        if (versions != NULL)
            dictionary->versions = versions;
        if (found == NULL || versions == NULL) {
            if (found != NULL)
                free_version(dictionary, found);
            return ef_err_set(err, EF_ENOMEM, "no memory for a worker version");
        }
        versions[dictionary->version_count++] = found;
    }
    found->used = now;
    if (dictionary->stack_count >= dictionary->stacks_max)
        EF_IGNORE(forget_oldest(dictionary, found, now, VERSION_IDLE_NS), "there may be none");
    *ret_version = found;
    return EF_OK;
}

static bool
grow(void **array, size_t *cap, size_t count, size_t size)
{
    size_t more = *cap > 0 ? *cap * 2 : 32;
    void *grown;

    if (count < *cap)
        return true;
    grown = realloc(*array, more * size);
    if (grown == NULL)
        return false;
    *array = grown;
    *cap = more;
    return true;
}

static bool
add_pending(struct ef_dictionary_pending *pending, size_t index)
{
    if (!grow((void **)&pending->index, &pending->cap, pending->count, sizeof(uint32_t)))
        return false;
    pending->index[pending->count++] = (uint32_t)index;
    return true;
}

static void
told(const struct ef_dictionary *dictionary, size_t bytes)
{
    if (dictionary->added != NULL)
        dictionary->added(dictionary->arg, bytes);
}

/* Content of a function as its hash sees it. */
struct function_text {
    const char *name, *file;
    uint32_t line;
    uint64_t hash;
    char buf[EF_PROFILE_FRAME_NAME_MAX];
};

static void
function_of(const struct ef_profile *profile, uint32_t frame, struct function_text *ret)
{
    const struct ef_profile_frame *at = &profile->frames[frame];

    if (at->function != 0) {
        const struct ef_profile_function *function = &profile->functions[at->function];
        ret->name = ef_profile_string(profile, function->name);
        ret->file = ef_profile_string(profile, function->file);
        ret->line = function->start_line;
    } else {
        ret->name = ef_profile_frame_name(profile, frame, ret->buf, sizeof(ret->buf));
        ret->file =
            ef_profile_string(profile, at->mapping != 0 ? profile->mappings[at->mapping].file : 0);
        ret->line = 0;
    }
    ret->hash =
        ef_function_hash(ret->name, strlen(ret->name), ret->file, strlen(ret->file), ret->line);
}

/* EF_ELIMIT: no room. `reserved`: belongs to a reserved stack, which always has room. */
static ef_rc
add_function(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
             const struct function_text *text, bool reserved)
{
    size_t name_bytes = strlen(text->name) + 1, file_bytes = strlen(text->file) + 1;
    struct ef_dictionary_function function = {.hash = text->hash, .line = text->line};
    uint64_t *index;
    bool is_new;

    if (ef_map_get(&version->function_map, text->hash) != NULL)
        return EF_OK;
    if (name_bytes > EF_WIRE_TEXT_BYTES_MAX + 1 || file_bytes > EF_WIRE_TEXT_BYTES_MAX + 1)
        return EF_ELIMIT; /* cut text would have another hash */
    if (!reserved && dictionary->text_bytes + name_bytes + file_bytes > dictionary->text_bytes_max)
        return EF_ELIMIT;
    function.name = malloc(name_bytes + file_bytes);
    if (function.name == NULL ||
        !grow((void **)&version->functions, &version->function_cap, version->function_count,
              sizeof(function)) ||
        !add_pending(&version->pending_functions, version->function_count)) {
        free(function.name);
        return EF_ENOMEM;
    }
    index = ef_map_upsert(&version->function_map, text->hash, &is_new);
    if (index == NULL) {
        version->pending_functions.count--;
        free(function.name);
        return EF_ENOMEM;
    }
    *index = version->function_count;
    function.file = function.name + name_bytes;
    memcpy(function.name, text->name, name_bytes);
    memcpy(function.file, text->file, file_bytes);
    version->functions[version->function_count++] = function;
    version->text_bytes += name_bytes + file_bytes;
    dictionary->text_bytes += name_bytes + file_bytes;
    told(dictionary, FUNCTION_WIRE_BYTES + name_bytes + file_bytes);
    return EF_OK;
}

static ef_rc
add_stack(struct ef_dictionary *dictionary, struct ef_dictionary_version *version, uint64_t hash,
          uint64_t parent, const struct function_text *text, uint32_t line, bool reserved)
{
    uint64_t *index;
    bool is_new;
    ef_rc rc;

    if (!reserved && dictionary->stack_count >= dictionary->stacks_max)
        return EF_ELIMIT;
    rc = add_function(dictionary, version, text, reserved);
    if (rc != EF_OK)
        return rc;
    if (!grow((void **)&version->stacks, &version->stack_cap, version->stack_count,
              sizeof(*version->stacks)) ||
        !add_pending(&version->pending_stacks, version->stack_count))
        return EF_ENOMEM;
    index = ef_map_upsert(&version->stack_map, hash, &is_new);
    if (index == NULL) {
        version->pending_stacks.count--;
        return EF_ENOMEM;
    }
    *index = version->stack_count;
    version->stacks[version->stack_count++] = (struct ef_dictionary_stack){
        .hash = hash, .parent = parent, .function = text->hash, .line = line};
    dictionary->stack_count++;
    told(dictionary, STACK_WIRE_BYTES);
    return EF_OK;
}

static ef_rc
define_reserved(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
                uint64_t *ret_hash, struct ef_err *err)
{
    struct function_text text = {.name = EF_STACK_LIMIT_NAME, .file = ""};
    uint64_t hash;
    ef_rc rc = EF_OK;

    text.hash = ef_function_hash(text.name, strlen(text.name), "", 0, 0);
    hash = ef_stack_hash(0, text.hash, 0);
    if (ef_map_get(&version->stack_map, hash) == NULL)
        rc = add_stack(dictionary, version, hash, 0, &text, 0, true);
    if (rc != EF_OK)
        return ef_err_set(err, EF_ENOMEM, "no memory for definitions");
    dictionary->stacks_over_limit++;
    *ret_hash = hash;
    return EF_OK;
}

ef_rc
ef_dictionary_define(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
                     const struct ef_profile *profile, const uint64_t *hashes, uint32_t node,
                     uint64_t *ret_hash, struct ef_err *err)
{
    uint32_t path[EF_PROFILE_DEPTH_MAX];
    size_t depth = 0;
    struct function_text text;

    for (uint32_t at = node; at != 0; at = profile->nodes[at].parent) {
        if (ef_map_get(&version->stack_map, hashes[at]) != NULL)
            break;
        if (depth == EF_COUNT_OF(path))
            return define_reserved(dictionary, version, ret_hash, err);
        path[depth++] = at;
    }
    while (depth-- > 0) {
        const struct ef_profile_node *at = &profile->nodes[path[depth]];
        uint64_t parent = hashes[at->parent];
        uint32_t line = profile->frames[at->frame].line;
        ef_rc rc;
        function_of(profile, at->frame, &text);
        if (ef_stack_hash(parent, text.hash, line) != hashes[path[depth]])
            return ef_err_set(err, EF_EINVAL, "hash of node %" PRIu32 " is not that of its stack",
                              path[depth]);
        rc = add_stack(dictionary, version, hashes[path[depth]], parent, &text, line, false);
        if (rc == EF_ELIMIT)
            return define_reserved(dictionary, version, ret_hash, err);
        if (rc != EF_OK)
            return ef_err_set(err, rc, "no memory for definitions");
    }
    *ret_hash = hashes[node];
    return EF_OK;
}

/* Makes a function pending again. */
static void
want_function(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
              uint64_t hash, ef_mono_ns now)
{
    const uint64_t *index = ef_map_get(&version->function_map, hash);
    struct ef_dictionary_function *function;

    if (index == NULL)
        return;
    function = &version->functions[*index];
    if (function->answered_ns != 0 && now.ns - function->answered_ns < ANSWER_AGAIN_NS)
        return;
    if (!add_pending(&version->pending_functions, *index))
        return; /* the collector asks again */
    function->answered_ns = now.ns;
    told(dictionary, FUNCTION_WIRE_BYTES + strlen(function->name) + strlen(function->file));
}

void
ef_dictionary_want(struct ef_dictionary *dictionary, struct ef_dictionary_version *version,
                   uint64_t hash, ef_mono_ns now)
{
    /* Each step goes to a caller that was known before, so the walk ends. */
    for (const uint64_t *index;
         hash != 0 && (index = ef_map_get(&version->stack_map, hash)) != NULL;) {
        struct ef_dictionary_stack *stack = &version->stacks[*index];
        hash = stack->parent;
        if (stack->answered_ns != 0 && now.ns - stack->answered_ns < ANSWER_AGAIN_NS)
            continue;
        want_function(dictionary, version, stack->function, now);
        if (!add_pending(&version->pending_stacks, *index))
            return;
        stack->answered_ns = now.ns;
        told(dictionary, STACK_WIRE_BYTES);
    }
}
