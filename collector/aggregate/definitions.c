/*
 * Decides which definitions of a batch are taken: those whose hash is the hash of what they say
 * (nobody may give another's stack a name), whose function and caller are known, and for which
 * there is room. The order inside a batch does not matter: a stack whose caller has not come yet
 * waits in a list for it. Runs under the aggregate's lock.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/metric.h"
#include "proto/model/hash.h"
#include "proto/wire/wire.h"

#include <stdlib.h>
#include <string.h>

struct item {
    uint32_t definitions, index; /* in the batch */
    uint32_t next;               /* item + 1 in a waiting list; 0 = end */
};

struct accept {
    struct ef_aggregate *aggregate;
    const Everflame__V1__Batch *batch;
    int64_t now_ns;
    struct ef_map waiting; /* key of a caller -> first item + 1 that waits for it */
    struct item *items;
    size_t item_count, item_cap;
    bool added, no_memory;
};

enum outcome { TAKEN, KNOWN, WAITS, REFUSED };

static void
refuse(struct accept *accept)
{
    accept->aggregate->definitions_refused++;
    ef_metric_add(EF_METRIC_ingest_refused_definitions_total, 1);
}

static struct ef_version *
version_of(const struct accept *accept, uint32_t definitions)
{
    uint32_t source = accept->batch->definitions[definitions]->source;
    struct ef_place *place = accept->aggregate->scratch.sources[source].place;

    /* Its tables may have been evicted for others of this batch: then it comes again on request. */
    if (place == NULL || !ef_dictionary_loaded(place->version, EF_DICTIONARY_STACKS) ||
        !ef_dictionary_loaded(place->version, EF_DICTIONARY_FUNCTIONS))
        return NULL;
    return place->version;
}

static void
accept_function(struct accept *accept, struct ef_version *version,
                const Everflame__V1__Definitions *definitions, size_t i)
{
    const char *name = definitions->function_name[i], *file = definitions->function_file[i];
    uint64_t hash = definitions->function_hash[i];
    uint32_t line = definitions->function_line[i];

    if (ef_ids_find(&version->functions, hash) != 0)
        return;
    if (hash != ef_function_hash(name, strlen(name), file, strlen(file), line)) {
        refuse(accept);
        return;
    }
    if (!ef_dictionary_room(accept->aggregate, version, EF_DICTIONARY_FUNCTIONS, accept->now_ns))
        return;
    if (ef_dictionary_add_function(accept->aggregate, version, hash, name, file, line) == 0)
        accept->no_memory = true;
}

static enum outcome
try_stack(struct accept *accept, struct ef_version *version,
          const Everflame__V1__Definitions *definitions, size_t i)
{
    uint64_t hash = definitions->stack_hash[i], parent_hash = definitions->stack_parent[i];
    uint32_t line = definitions->stack_line[i], parent = 0, function;

    if (ef_ids_find(&version->stacks, hash) != 0)
        return KNOWN;
    if (hash != ef_stack_hash(parent_hash, definitions->stack_function[i], line))
        return REFUSED;
    function = ef_ids_find(&version->functions, definitions->stack_function[i]);
    if (function == 0)
        return ef_dictionary_room(accept->aggregate, version, EF_DICTIONARY_FUNCTIONS,
                                  accept->now_ns)
                   ? REFUSED
                   : KNOWN; /* it was refused for room, which is not the sender's fault */
    if (parent_hash != 0) {
        parent = ef_ids_find(&version->stacks, parent_hash);
        if (parent == 0) /* without room its caller was refused too, and will not come */
            return ef_dictionary_room(accept->aggregate, version, EF_DICTIONARY_STACKS,
                                      accept->now_ns)
                       ? WAITS
                       : KNOWN;
    }
    if (!ef_dictionary_room(accept->aggregate, version, EF_DICTIONARY_STACKS, accept->now_ns))
        return KNOWN;
    if (ef_dictionary_add_stack(accept->aggregate, version, hash, parent, function, line) == 0) {
        accept->no_memory = true;
        return KNOWN;
    }
    accept->added = true;
    return TAKEN;
}

/* Versions in one key space; a collision only wakes a stack that goes on waiting. */
static uint64_t
waiting_key(const struct ef_version *version, uint64_t hash)
{
    return hash ^ version->id * UINT64_C(0x9e3779b97f4a7c15);
}

static void
wait_for(struct accept *accept, uint64_t key, uint32_t item)
{
    bool is_new;
    uint64_t *head = ef_map_upsert(&accept->waiting, key, &is_new);

    if (head == NULL) {
        accept->no_memory = true;
        return;
    }
    accept->items[item].next = (uint32_t)*head;
    *head = item + 1;
}

/* Takes the list that waited for a stack off the map, in front of `work`. */
static uint32_t
wake(struct accept *accept, uint64_t key, uint32_t work)
{
    const uint64_t *head = ef_map_get(&accept->waiting, key);
    uint32_t first, last;

    if (head == NULL)
        return work;
    first = last = (uint32_t)*head;
    while (accept->items[last - 1].next != 0)
        last = accept->items[last - 1].next;
    accept->items[last - 1].next = work;
    ef_map_remove(&accept->waiting, key);
    return first;
}

static uint32_t
new_item(struct accept *accept, uint32_t definitions, uint32_t index)
{
    void *array = accept->items;

    if (!ef_agg_grow(&array, &accept->item_cap, accept->item_count + 1, sizeof(*accept->items))) {
        accept->no_memory = true;
        return 0;
    }
    accept->items = array;
    accept->items[accept->item_count++] = (struct item){definitions, index, 0};
    return (uint32_t)accept->item_count;
}

/* Tries the items of the list `work` (item + 1), and all that their success lets go on. */
static void
work_off(struct accept *accept, uint32_t work)
{
    while (work != 0) {
        uint32_t item = work - 1, d = accept->items[item].definitions;
        size_t i = accept->items[item].index;
        const Everflame__V1__Definitions *definitions = accept->batch->definitions[d];
        struct ef_version *version = version_of(accept, d);
        work = accept->items[item].next;
        if (version == NULL)
            continue;
        switch (try_stack(accept, version, definitions, i)) {
        case TAKEN:
            work = wake(accept, waiting_key(version, definitions->stack_hash[i]), work);
            break;
        case WAITS:
            wait_for(accept, waiting_key(version, definitions->stack_parent[i]), item);
            break;
        case REFUSED:
            refuse(accept);
            break;
        case KNOWN:
            break;
        }
    }
}

static void
accept_stacks(struct accept *accept, uint32_t d)
{
    const Everflame__V1__Definitions *definitions = accept->batch->definitions[d];

    for (size_t i = 0; i < definitions->n_stack_hash; i++) {
        struct ef_version *version = version_of(accept, d);
        uint32_t item;
        if (version == NULL)
            return;
        switch (try_stack(accept, version, definitions, i)) {
        case TAKEN:
            if (accept->waiting.count > 0)
                work_off(accept, wake(accept, waiting_key(version, definitions->stack_hash[i]), 0));
            break;
        case WAITS:
            item = new_item(accept, d, (uint32_t)i);
            if (item != 0)
                wait_for(accept, waiting_key(version, definitions->stack_parent[i]), item - 1);
            break;
        case REFUSED:
            refuse(accept);
            break;
        case KNOWN:
            break;
        }
    }
}

ef_rc
ef_definitions_accept(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                      int64_t now_ns, bool *ret_added, struct ef_err *err)
{
    struct accept accept = {.aggregate = aggregate, .batch = batch, .now_ns = now_ns};

    ef_map_init(&accept.waiting, EF_WIRE_DEFINITIONS_MAX);
    for (uint32_t d = 0; d < batch->n_definitions; d++) {
        for (size_t i = 0; i < batch->definitions[d]->n_function_hash; i++) {
            struct ef_version *version = version_of(&accept, d);
            if (version == NULL)
                break;
            accept_function(&accept, version, batch->definitions[d], i);
        }
    }
    for (uint32_t d = 0; d < batch->n_definitions; d++)
        accept_stacks(&accept, d);
    ef_map_fini(&accept.waiting);
    free(accept.items);
    *ret_added = accept.added;
    if (accept.no_memory)
        return ef_err_set(err, EF_ENOMEM, "no memory for definitions");
    return EF_OK;
}
