/*
 * Decides what is kept between queries: the catalogue, and the definitions of the versions asked
 * last, least recently used first out. Any thread.
 */
#include "collector/query/query.h"

#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

#define DEFINITIONS_BYTES_DEFAULT (16u << 20)
#define REQUEST_BYTES_DEFAULT (32u << 20)
#define CATALOGUE_AGE_MS_DEFAULT 1000u

static const struct {
    uint8_t type;
    const char *name, *unit;
} types[] = {{EF_TYPE_CPU, "cpu", "nanoseconds"},
             {EF_TYPE_ALLOC, "alloc", "bytes"},
             {EF_TYPE_INUSE, "inuse", "bytes"},
             {EF_TYPE_WALL, "wall", "nanoseconds"},
             {EF_TYPE_ALLOC, "heap", "bytes"}}; /* another word for alloc */

uint8_t
ef_type_find(const char *name)
{
    for (size_t i = 0; i < EF_COUNT_OF(types); i++) {
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    }
    return 0;
}

const char *
ef_type_name(uint8_t profile_type)
{
    for (size_t i = 0; i < EF_COUNT_OF(types); i++) {
        if (types[i].type == profile_type)
            return types[i].name;
    }
    return "unknown";
}

const char *
ef_type_unit(uint8_t profile_type)
{
    for (size_t i = 0; i < EF_COUNT_OF(types); i++) {
        if (types[i].type == profile_type)
            return types[i].unit;
    }
    return "count";
}

const char *
ef_empty_name(enum ef_empty empty)
{
    static const char *const names[] = {
        "",           "no_such_worker", "no_such_version", "no_such_type", "before_data",
        "after_data", "no_samples"};

    return names[empty];
}

ef_rc
ef_query_open(struct ef_store *store, const struct ef_query_options *options,
              struct ef_query **ret_query, struct ef_err *err)
{
    struct ef_query *query = calloc(1, sizeof(*query));

    if (query == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for queries");
    query->store = store;
    if (options != NULL)
        query->options = *options;
    if (query->options.definitions_bytes_max == 0)
        query->options.definitions_bytes_max = DEFINITIONS_BYTES_DEFAULT;
    if (query->options.request_bytes_max == 0)
        query->options.request_bytes_max = REQUEST_BYTES_DEFAULT;
    if (query->options.catalogue_age_ms_max == 0)
        query->options.catalogue_age_ms_max = CATALOGUE_AGE_MS_DEFAULT;
    pthread_mutex_init(&query->lock, NULL);
    *ret_query = query;
    return EF_OK;
}

void
ef_query_free(struct ef_query *query)
{
    if (query == NULL)
        return;
    ef_query_catalogue_unref(query->catalogue);
    for (size_t i = 0; i < query->cached_count; i++)
        ef_query_definitions_unref(query->cached[i]);
    pthread_mutex_destroy(&query->lock);
    free(query);
}

void
ef_query_invalidate(struct ef_query *query)
{
    atomic_store(&query->invalid, true);
}

uint64_t
ef_query_bytes(struct ef_query *query)
{
    uint64_t bytes;

    pthread_mutex_lock(&query->lock);
    bytes = sizeof(*query) + query->cached_bytes;
    if (query->catalogue != NULL)
        bytes += query->catalogue->text.cap +
                 query->catalogue->version_count * sizeof(*query->catalogue->versions) +
                 query->catalogue->series_count * sizeof(*query->catalogue->series);
    pthread_mutex_unlock(&query->lock);
    return bytes;
}

static struct ef_catalogue *
current_catalogue(struct ef_query *query)
{
    struct ef_catalogue *catalogue;
    int64_t age_max_ns = (int64_t)query->options.catalogue_age_ms_max * EF_NS_PER_MS;

    if (atomic_exchange(&query->invalid, false))
        return NULL;
    pthread_mutex_lock(&query->lock);
    catalogue = query->catalogue;
    if (catalogue != NULL && ef_mono_since(catalogue->loaded, ef_mono_now()).ns > age_max_ns)
        catalogue = NULL;
    if (catalogue != NULL)
        atomic_fetch_add(&catalogue->refs, 1);
    pthread_mutex_unlock(&query->lock);
    return catalogue;
}

ef_rc
ef_query_catalogue(struct ef_query *query, struct ef_catalogue **ret_catalogue, struct ef_err *err)
{
    struct ef_catalogue *catalogue = current_catalogue(query), *old;
    ef_rc rc;

    if (catalogue == NULL) {
        rc = ef_query_catalogue_load(query->store, &catalogue, err);
        if (rc != EF_OK) {
            ef_query_invalidate(query);
            return rc;
        }
        atomic_fetch_add(&catalogue->refs, 1); /* one for the cache, one for the caller */
        pthread_mutex_lock(&query->lock);
        old = query->catalogue;
        query->catalogue = catalogue;
        pthread_mutex_unlock(&query->lock);
        ef_query_catalogue_unref(old);
    }
    *ret_catalogue = catalogue;
    return EF_OK;
}

/* Takes one out of the cache; the caller unrefs it after unlocking. */
static struct ef_definitions *
drop_cached(struct ef_query *query, size_t index)
{
    struct ef_definitions *dropped = query->cached[index];

    query->cached_bytes -= dropped->bytes;
    query->cached[index] = query->cached[--query->cached_count];
    return dropped;
}

static struct ef_definitions *
drop_oldest(struct ef_query *query)
{
    size_t oldest = 0;

    for (size_t i = 1; i < query->cached_count; i++) {
        if (query->cached[i]->used < query->cached[oldest]->used)
            oldest = i;
    }
    return drop_cached(query, oldest);
}

static struct ef_definitions *
find_cached(struct ef_query *query, uint32_t version_id, uint32_t stack_count_min)
{
    struct ef_definitions *found = NULL;

    pthread_mutex_lock(&query->lock);
    for (size_t i = 0; i < query->cached_count && found == NULL; i++) {
        if (query->cached[i]->version_id == version_id &&
            query->cached[i]->stack_count >= stack_count_min)
            found = query->cached[i];
    }
    if (found != NULL) {
        found->used = ++query->used;
        atomic_fetch_add(&found->refs, 1);
    }
    pthread_mutex_unlock(&query->lock);
    return found;
}

/* Keeps one in place of an older one of the same version; makes room. */
static void
put_cached(struct ef_query *query, struct ef_definitions *definitions)
{
    struct ef_definitions *dropped[EF_DEFINITIONS_CACHED_MAX + 1];
    size_t dropped_count = 0;

    if (definitions->bytes > query->options.definitions_bytes_max)
        return; /* used once, not kept */
    atomic_fetch_add(&definitions->refs, 1);
    pthread_mutex_lock(&query->lock);
    for (size_t i = 0; i < query->cached_count; i++) {
        if (query->cached[i]->version_id == definitions->version_id) {
            dropped[dropped_count++] = drop_cached(query, i);
            break;
        }
    }
    while (query->cached_count > 0 &&
           (query->cached_count == EF_DEFINITIONS_CACHED_MAX ||
            query->cached_bytes + definitions->bytes > query->options.definitions_bytes_max))
        dropped[dropped_count++] = drop_oldest(query);
    definitions->used = ++query->used;
    query->cached[query->cached_count++] = definitions;
    query->cached_bytes += definitions->bytes;
    pthread_mutex_unlock(&query->lock);
    for (size_t i = 0; i < dropped_count; i++)
        ef_query_definitions_unref(dropped[i]);
}

ef_rc
ef_query_definitions(struct ef_query *query, uint32_t version_id, uint32_t stack_count_min,
                     struct ef_definitions **ret_definitions, struct ef_err *err)
{
    struct ef_definitions *definitions = find_cached(query, version_id, stack_count_min);
    ef_rc rc;

    if (definitions == NULL) {
        rc = ef_query_definitions_load(query->store, version_id, query->options.request_bytes_max,
                                       &definitions, err);
        if (rc != EF_OK)
            return rc;
        put_cached(query, definitions);
    }
    *ret_definitions = definitions;
    return EF_OK;
}
