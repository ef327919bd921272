/*
 * Decides how long the hash tables of a version stay in memory, and gives ids to new definitions.
 * Tables are a cache of the store once their definitions are on disk. Runs under the aggregate's
 * lock; ef_dictionary_load without it.
 *
 * A new definition never evicts a table that is in use (it is refused instead and its samples go
 * to "(limit reached)"): with more stacks than fit, evicting would read tables from disk for every
 * batch.
 */
#include "collector/aggregate/internal.h"

#include "proto/model/hash.h"

#include <stdlib.h>
#include <string.h>

#define SEARCH_AGAIN_NS EF_NS_PER_S           /* a search looks at every version */
#define IN_USE_NS (INT64_C(60) * EF_NS_PER_S) /* chosen: four flush intervals */

/* ---- memory ---- */

/* The tables' share of the memory: five eighths, the rest is for buckets and delivery. */
static uint64_t
budget(const struct ef_aggregate *aggregate)
{
    return aggregate->options.memory_bytes_max / 8 * 5;
}

bool
ef_dictionary_over(const struct ef_aggregate *aggregate)
{
    return aggregate->dictionary_bytes > budget(aggregate);
}

static bool
dirty(const struct ef_version *version)
{
    return version->frozen || version->fresh.stack_count > 0 || version->fresh.function_count > 0;
}

static bool
evictable(const struct ef_version *version, int64_t used_before_ns)
{
    return (version->stacks.count > 0 || version->functions.count > 0) && !dirty(version) &&
           version->used_ns < used_before_ns;
}

static void
evict(struct ef_aggregate *aggregate, struct ef_version *version)
{
    aggregate->dictionary_bytes -= ef_ids_bytes(&version->stacks);
    aggregate->dictionary_bytes -= ef_ids_bytes(&version->functions);
    ef_ids_fini(&version->stacks);
    ef_ids_fini(&version->functions);
    version->stacks_loaded = version->functions_loaded = false;
    version->generation++;
}

/* Function tables are needed only when definitions come, so they go first, all at once, except
 * those of the batch under way. */
static void
evict_functions(struct ef_aggregate *aggregate, int64_t now_ns)
{
    for (uint32_t i = 0; i < aggregate->catalogue.version_count; i++) {
        struct ef_version *version = aggregate->catalogue.versions[i];
        if (evictable(version, now_ns) && version->functions.count > 0) {
            aggregate->dictionary_bytes -= ef_ids_bytes(&version->functions);
            ef_ids_fini(&version->functions);
            version->functions_loaded = false;
            version->generation++;
        }
    }
}

void
ef_dictionary_evict(struct ef_aggregate *aggregate, int64_t idle_ns, int64_t now_ns)
{
    if (ef_dictionary_over(aggregate))
        evict_functions(aggregate, now_ns);
    while (ef_dictionary_over(aggregate)) {
        struct ef_version *oldest = NULL;
        for (uint32_t i = 0; i < aggregate->catalogue.version_count; i++) {
            struct ef_version *version = aggregate->catalogue.versions[i];
            if (evictable(version, now_ns - idle_ns) &&
                (oldest == NULL || version->used_ns < oldest->used_ns))
                oldest = version;
        }
        if (oldest == NULL)
            return;
        evict(aggregate, oldest);
    }
}

/* Whether there is memory for another definition. The tables of this version must stay. */
static bool
has_memory(struct ef_aggregate *aggregate, struct ef_version *version, int64_t now_ns)
{
    if (!ef_dictionary_over(aggregate))
        return true;
    if (now_ns - aggregate->evicted_ns < SEARCH_AGAIN_NS)
        return false;
    version->used_ns = now_ns;
    ef_dictionary_evict(aggregate, IN_USE_NS, now_ns);
    if (!ef_dictionary_over(aggregate))
        return true;
    aggregate->evicted_ns = now_ns;
    return false;
}

bool
ef_dictionary_room(struct ef_aggregate *aggregate, struct ef_version *version, unsigned parts,
                   int64_t now_ns)
{
    uint32_t max = aggregate->options.stacks_per_version_max;

    if (((parts & EF_DICTIONARY_STACKS) != 0 && version->stacks.count >= max) ||
        ((parts & EF_DICTIONARY_FUNCTIONS) != 0 && version->functions.count >= max))
        return false;
    return has_memory(aggregate, version, now_ns);
}

/* ---- loading ---- */

struct load {
    struct ef_ids stacks, functions;
    struct ef_err *err;
};

static ef_rc
load_one(struct load *load, struct ef_ids *ids, const char *what, uint32_t id, uint64_t hash)
{
    if (id != ids->count + 1)
        return ef_err_set(load->err, EF_ECORRUPT, "%s %u of the store is out of order", what, id);
    if (ef_ids_add(ids, hash) == 0)
        return ef_err_set(load->err, EF_ENOMEM, "no memory for %s %u", what, id);
    return EF_OK;
}

static ef_rc
load_stack(void *arg, const struct ef_store_stack *stack)
{
    struct load *load = arg;

    return load_one(load, &load->stacks, "stack", stack->id, stack->hash);
}

static ef_rc
load_function(void *arg, const struct ef_store_function *function)
{
    struct load *load = arg;

    return load_one(load, &load->functions, "function", function->id, function->hash);
}

static void
install(struct ef_aggregate *aggregate, struct ef_ids *target, bool *loaded, struct ef_ids *source)
{
    aggregate->dictionary_bytes += ef_ids_bytes(source);
    *target = *source;
    *source = (struct ef_ids){0};
    *loaded = true;
}

ef_rc
ef_dictionary_load(struct ef_aggregate *aggregate, struct ef_version *version, unsigned parts,
                   struct ef_err *err)
{
    struct load load = {.err = err};
    uint64_t generation;
    ef_rc rc = EF_OK;

    pthread_mutex_lock(&aggregate->lock);
    generation = version->generation;
    parts &= (version->stacks_loaded ? 0u : EF_DICTIONARY_STACKS) |
             (version->functions_loaded ? 0u : EF_DICTIONARY_FUNCTIONS);
    pthread_mutex_unlock(&aggregate->lock);
    if ((parts & EF_DICTIONARY_STACKS) != 0)
        rc = ef_store_each_stack(aggregate->store, version->id, load_stack, &load, err);
    if (rc == EF_OK && (parts & EF_DICTIONARY_FUNCTIONS) != 0)
        rc = ef_store_each_function(aggregate->store, version->id, load_function, &load, err);
    pthread_mutex_lock(&aggregate->lock);
    /* Somebody else may have loaded, added, flushed and evicted meanwhile: then ours is old. */
    if (rc == EF_OK && version->generation == generation) {
        if ((parts & EF_DICTIONARY_STACKS) != 0)
            install(aggregate, &version->stacks, &version->stacks_loaded, &load.stacks);
        if ((parts & EF_DICTIONARY_FUNCTIONS) != 0)
            install(aggregate, &version->functions, &version->functions_loaded, &load.functions);
        version->generation++;
    }
    pthread_mutex_unlock(&aggregate->lock);
    ef_ids_fini(&load.stacks);
    ef_ids_fini(&load.functions);
    return rc;
}

/* ---- new definitions ---- */

void
ef_fresh_fini(struct ef_fresh *fresh)
{
    free(fresh->functions);
    free(fresh->stacks);
    ef_buf_fini(&fresh->text);
    *fresh = (struct ef_fresh){0};
}

size_t
ef_fresh_bytes(const struct ef_fresh *fresh)
{
    return fresh->function_cap * sizeof(*fresh->functions) +
           fresh->stack_cap * sizeof(*fresh->stacks) + fresh->text.cap;
}

static uint32_t
put_text(struct ef_buf *text, const char *name)
{
    uint32_t at = (uint32_t)text->len;

    ef_buf_append(text, name, strlen(name) + 1);
    return at;
}

static bool
put_names(struct ef_fresh *fresh, const char *name, const char *file,
          struct ef_new_function *function)
{
    bool same = fresh->function_count > 0 &&
                strcmp((const char *)fresh->text.data + fresh->file_last, file) == 0;

    /* Reserved first, so that a failed append cannot leave half. */
    if (!ef_buf_reserve(&fresh->text, strlen(name) + strlen(file) + 2)) {
        fresh->text.failed = false;
        return false;
    }
    function->name_at = put_text(&fresh->text, name);
    function->file_at = same ? fresh->file_last : put_text(&fresh->text, file);
    fresh->file_last = function->file_at;
    return true;
}

static uint32_t
add_function(struct ef_version *version, uint64_t hash, const char *name, const char *file,
             uint32_t line)
{
    struct ef_fresh *fresh = &version->fresh;
    struct ef_new_function function = {.hash = hash, .line = line};
    void *array = fresh->functions;
    uint32_t id;

    if (!ef_agg_grow_u32(&array, &fresh->function_cap, fresh->function_count + 1,
                         sizeof(*fresh->functions)))
        return 0;
    fresh->functions = array;
    if (!put_names(fresh, name, file, &function))
        return 0;
    id = ef_ids_add(&version->functions, hash);
    if (id == 0)
        return 0;
    if (fresh->function_count == 0)
        fresh->function_first = id;
    fresh->functions[fresh->function_count++] = function;
    return id;
}

static uint32_t
add_stack(struct ef_version *version, const struct ef_new_stack *stack)
{
    struct ef_fresh *fresh = &version->fresh;
    void *array = fresh->stacks;
    uint32_t id;

    if (!ef_agg_grow_u32(&array, &fresh->stack_cap, fresh->stack_count + 1, sizeof(*fresh->stacks)))
        return 0;
    fresh->stacks = array;
    id = ef_ids_add(&version->stacks, stack->hash);
    if (id == 0)
        return 0;
    if (fresh->stack_count == 0)
        fresh->stack_first = id;
    fresh->stacks[fresh->stack_count++] = *stack;
    return id;
}

uint32_t
ef_dictionary_add_function(struct ef_aggregate *aggregate, struct ef_version *version,
                           uint64_t hash, const char *name, const char *file, uint32_t line)
{
    size_t fresh = ef_fresh_bytes(&version->fresh), table = ef_ids_bytes(&version->functions);
    uint32_t id = add_function(version, hash, name, file, line);

    aggregate->fresh_bytes += ef_fresh_bytes(&version->fresh) - fresh;
    aggregate->dictionary_bytes += ef_ids_bytes(&version->functions) - table;
    version->generation++;
    return id;
}

uint32_t
ef_dictionary_add_stack(struct ef_aggregate *aggregate, struct ef_version *version, uint64_t hash,
                        uint32_t parent, uint32_t function, uint32_t line)
{
    size_t fresh = ef_fresh_bytes(&version->fresh), table = ef_ids_bytes(&version->stacks);
    struct ef_new_stack stack = {hash, parent, function, line};
    uint32_t id = add_stack(version, &stack);

    aggregate->fresh_bytes += ef_fresh_bytes(&version->fresh) - fresh;
    aggregate->dictionary_bytes += ef_ids_bytes(&version->stacks) - table;
    version->generation++;
    return id;
}

uint32_t
ef_dictionary_reserved(struct ef_aggregate *aggregate, struct ef_version *version, const char *name)
{
    bool limit = strcmp(name, EF_STACK_LIMIT_NAME) == 0;
    uint32_t *known = limit ? &version->limit_stack : &version->unknown_stack;
    uint64_t function_hash, stack_hash;
    uint32_t function;

    if (*known != 0)
        return *known;
    function_hash = ef_function_hash(name, strlen(name), "", 0, 0);
    stack_hash = ef_stack_hash(0, function_hash, 0);
    *known = ef_ids_find(&version->stacks, stack_hash);
    if (*known != 0)
        return *known;
    function = ef_ids_find(&version->functions, function_hash);
    if (function == 0)
        function = ef_dictionary_add_function(aggregate, version, function_hash, name, "", 0);
    if (function != 0)
        *known = ef_dictionary_add_stack(aggregate, version, stack_hash, 0, function, 0);
    return *known;
}
