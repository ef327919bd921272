/*
 * Decides which workers, versions, places and series there are, and gives them dense ids. Runs
 * under the aggregate's lock; ef_catalogue_load before there are threads.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/metric.h"

#include <stdlib.h>
#include <string.h>

#define KEY_BYTES (4 * (EF_STORE_NAME_MAX + 1)) /* account, worker, version, region with NULs */

/* Four names, longer ones refused, as one key: names hold no NUL, so it is unambiguous. */
static bool
make_hash(const char *const *names, size_t count, uint64_t *ret_hash)
{
    char key[KEY_BYTES];
    size_t len = 0;

    for (size_t i = 0; i < count; i++) {
        size_t name_len = strlen(names[i]);
        if (name_len > EF_STORE_NAME_MAX)
            return false;
        memcpy(key + len, names[i], name_len + 1);
        len += name_len + 1;
    }
    *ret_hash = ef_hash(key, len);
    return true;
}

/* The next place to look after two keys had the same hash. */
static uint64_t
rehash(uint64_t hash)
{
    return hash * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static struct ef_worker *
find_worker(const struct ef_catalogue *catalogue, const char *account, const char *worker,
            uint64_t *hash)
{
    const uint64_t *index;

    for (; (index = ef_map_get(&catalogue->worker_of, *hash)) != NULL; *hash = rehash(*hash)) {
        struct ef_worker *found = &catalogue->workers[*index - 1];
        if (strcmp(found->worker, worker) == 0 && strcmp(found->account, account) == 0)
            return found;
    }
    return NULL;
}

static struct ef_version *
find_version(const struct ef_catalogue *catalogue, const char *account, const char *worker,
             const char *version, uint64_t *hash)
{
    const uint64_t *index;

    for (; (index = ef_map_get(&catalogue->version_of, *hash)) != NULL; *hash = rehash(*hash)) {
        struct ef_version *found = catalogue->versions[*index - 1];
        if (strcmp(found->version, version) == 0 && strcmp(found->worker, worker) == 0 &&
            strcmp(found->account, account) == 0)
            return found;
    }
    return NULL;
}

static struct ef_place *
find_place(const struct ef_catalogue *catalogue, const char *account, const char *worker,
           const char *version, const char *region, uint64_t *hash)
{
    const uint64_t *index;

    for (; (index = ef_map_get(&catalogue->place_of, *hash)) != NULL; *hash = rehash(*hash)) {
        struct ef_place *found = catalogue->places[*index - 1];
        if (strcmp(found->version->version, version) == 0 &&
            strcmp(found->version->worker, worker) == 0 &&
            strcmp(found->version->account, account) == 0 && strcmp(found->region, region) == 0)
            return found;
    }
    return NULL;
}

static bool
grow_counted(void **array, uint32_t *cap, uint32_t count, size_t item_bytes, uint64_t *bytes)
{
    uint32_t before = *cap;

    if (!ef_agg_grow_u32(array, cap, count, item_bytes))
        return false;
    *bytes += (size_t)(*cap - before) * item_bytes;
    return true;
}

static bool
put_index(struct ef_aggregate *aggregate, struct ef_map *map, uint64_t hash, uint32_t index)
{
    size_t before = ef_map_bytes(map);
    bool is_new;
    uint64_t *value = ef_map_upsert(map, hash, &is_new);

    if (value == NULL)
        return false;
    *value = (uint64_t)index + 1;
    aggregate->catalogue_bytes += ef_map_bytes(map) - before;
    return true;
}

static struct ef_worker *
add_worker(struct ef_aggregate *aggregate, struct ef_version *version, uint64_t hash)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    void *array = catalogue->workers;

    if (!grow_counted(&array, &catalogue->worker_cap, catalogue->worker_count + 1,
                      sizeof(*catalogue->workers), &aggregate->catalogue_bytes))
        return NULL;
    catalogue->workers = array;
    if (!put_index(aggregate, &catalogue->worker_of, hash, catalogue->worker_count))
        return NULL;
    /* Its names are those of its first version, which lives as long. */
    catalogue->workers[catalogue->worker_count] =
        (struct ef_worker){version->account, version->worker, 0};
    return &catalogue->workers[catalogue->worker_count++];
}

static struct ef_version *
open_version(const char *account, const char *worker, const char *version, int64_t created_ns)
{
    size_t account_len = strlen(account) + 1, worker_len = strlen(worker) + 1;
    size_t version_len = strlen(version) + 1;
    struct ef_version *made = calloc(1, sizeof(*made));
    char *names = malloc(account_len + worker_len + version_len);

    if (made == NULL || names == NULL) {
        free(made);
        free(names);
        return NULL;
    }
    made->account = memcpy(names, account, account_len);
    made->worker = memcpy(names + account_len, worker, worker_len);
    made->version = memcpy(names + account_len + worker_len, version, version_len);
    made->created_ns = created_ns;
    ef_buf_init(&made->fresh.text, EF_TEXT_BYTES_MAX);
    return made;
}

void
ef_version_free(struct ef_version *version)
{
    if (version == NULL)
        return;
    ef_ids_fini(&version->stacks);
    ef_ids_fini(&version->functions);
    ef_fresh_fini(&version->fresh);
    free(version->account); /* with worker and version */
    free(version);
}

/* Takes the version. The worker is made when it is the first. False: no memory. */
static bool
add_version(struct ef_aggregate *aggregate, struct ef_version *version, uint64_t version_hash,
            struct ef_worker *worker, uint64_t worker_hash)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    void *array = catalogue->versions;

    if (!grow_counted(&array, &catalogue->version_cap, catalogue->version_count + 1,
                      sizeof(struct ef_version *), &aggregate->catalogue_bytes))
        goto failed;
    catalogue->versions = array;
    if (!put_index(aggregate, &catalogue->version_of, version_hash, catalogue->version_count))
        goto failed;
    if (worker == NULL)
        worker = add_worker(aggregate, version, worker_hash);
    if (worker == NULL) {
        ef_map_remove(&catalogue->version_of, version_hash);
        goto failed;
    }
    worker->version_count++;
    version->id = catalogue->version_count + 1;
    catalogue->versions[catalogue->version_count++] = version;
    aggregate->catalogue_bytes += sizeof(*version) + 2 * EF_MALLOC_OVERHEAD +
                                  strlen(version->account) + strlen(version->worker) +
                                  strlen(version->version) + 3;
    return true;
failed:
    ef_version_free(version);
    return false;
}

static ef_rc
make_version(struct ef_aggregate *aggregate, const char *account, const char *worker_name,
             const char *version_name, int64_t now_ns, struct ef_version **ret_version,
             struct ef_err *err)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    const char *names[] = {account, worker_name, version_name};
    uint64_t version_hash, worker_hash;
    struct ef_version *version;
    struct ef_worker *worker;

    if (!make_hash(names, 3, &version_hash) || !make_hash(names, 2, &worker_hash))
        return ef_err_set(err, EF_ELIMIT, "a name is longer than %d bytes", EF_STORE_NAME_MAX);
    version = find_version(catalogue, account, worker_name, version_name, &version_hash);
    if (version != NULL) {
        *ret_version = version;
        return EF_OK;
    }
    worker = find_worker(catalogue, account, worker_name, &worker_hash);
    if (worker == NULL && catalogue->worker_count >= aggregate->options.workers_max)
        return ef_err_set(err, EF_ELIMIT, "worker '%s': more than %u workers", worker_name,
                          aggregate->options.workers_max);
    if (worker != NULL && worker->version_count >= aggregate->options.versions_per_worker_max)
        return ef_err_set(err, EF_ELIMIT, "worker '%s': more than %u versions", worker_name,
                          aggregate->options.versions_per_worker_max);
    version = open_version(account, worker_name, version_name, now_ns);
    if (version == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for version '%s'", version_name);
    /* A version that nobody has heard of has nothing in the store. */
    version->stacks_loaded = version->functions_loaded = true;
    if (!add_version(aggregate, version, version_hash, worker, worker_hash))
        return ef_err_set(err, EF_ENOMEM, "no memory for version '%s'", version_name);
    *ret_version = version;
    return EF_OK;
}

static struct ef_place *
open_place(struct ef_version *version, const char *region, uint64_t hash)
{
    size_t region_len = strlen(region) + 1;
    struct ef_place *place = calloc(1, sizeof(*place) + region_len);

    if (place == NULL)
        return NULL;
    place->hash = hash;
    place->version = version;
    place->region = memcpy(place + 1, region, region_len);
    return place;
}

static ef_rc
add_place(struct ef_aggregate *aggregate, struct ef_version *version, const char *region,
          uint64_t hash, struct ef_place **ret_place, struct ef_err *err)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    void *array = catalogue->places;
    struct ef_place *place = open_place(version, region, hash);

    if (place == NULL || !grow_counted(&array, &catalogue->place_cap, catalogue->place_count + 1,
                                       sizeof(struct ef_place *), &aggregate->catalogue_bytes)) {
        free(place);
        return ef_err_set(err, EF_ENOMEM, "no memory for region '%s'", region);
    }
    catalogue->places = array;
    if (!put_index(aggregate, &catalogue->place_of, hash, catalogue->place_count)) {
        free(place);
        return ef_err_set(err, EF_ENOMEM, "no memory for region '%s'", region);
    }
    catalogue->places[catalogue->place_count++] = place;
    aggregate->catalogue_bytes += sizeof(*place) + strlen(region) + 1 + EF_MALLOC_OVERHEAD;
    *ret_place = place;
    return EF_OK;
}

ef_rc
ef_catalogue_place(struct ef_aggregate *aggregate, const char *account, const char *worker,
                   const char *version_name, const char *region, int64_t now_ns,
                   struct ef_place **ret_place, struct ef_err *err)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    const char *names[] = {account, worker, version_name, region};
    struct ef_version *version = NULL;
    struct ef_place *place;
    uint64_t hash;
    ef_rc rc;

    if (!make_hash(names, 4, &hash))
        return ef_err_set(err, EF_ELIMIT, "a name is longer than %d bytes", EF_STORE_NAME_MAX);
    place = find_place(catalogue, account, worker, version_name, region, &hash);
    if (place != NULL) {
        *ret_place = place;
        return EF_OK;
    }
    /* A place is worth nothing without a series. */
    if (catalogue->series_count >= aggregate->options.series_max ||
        catalogue->place_count >= aggregate->options.series_max)
        return ef_err_set(err, EF_ELIMIT, "worker '%s': more than %u series", worker,
                          aggregate->options.series_max);
    rc = make_version(aggregate, account, worker, version_name, now_ns, &version, err);
    if (rc != EF_OK)
        return rc;
    return add_place(aggregate, version, region, hash, ret_place, err);
}

static uint32_t
add_series(struct ef_aggregate *aggregate, struct ef_place *place, uint8_t type)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    void *array = catalogue->series;

    if (!grow_counted(&array, &catalogue->series_cap, catalogue->series_count + 1,
                      sizeof(*catalogue->series), &aggregate->catalogue_bytes))
        return 0;
    catalogue->series = array;
    catalogue->series[catalogue->series_count++] =
        (struct ef_series){place->version->id, type, place->region};
    place->series[type] = catalogue->series_count;
    return catalogue->series_count;
}

uint32_t
ef_catalogue_series(struct ef_aggregate *aggregate, struct ef_place *place, uint8_t type)
{
    EF_ASSERT(type > 0 && type < EF_TYPE_COUNT);
    if (place->series[type] != 0)
        return place->series[type];
    if (aggregate->catalogue.series_count >= aggregate->options.series_max)
        return 0;
    return add_series(aggregate, place, type);
}

/* ---- loading ---- */

struct load {
    struct ef_aggregate *aggregate;
    struct ef_err *err;
};

static ef_rc
load_version(void *arg, const struct ef_store_version *stored)
{
    struct load *load = arg;
    struct ef_catalogue *catalogue = &load->aggregate->catalogue;
    const char *names[] = {stored->account, stored->worker, stored->version};
    uint64_t version_hash, worker_hash;
    struct ef_version *version;
    struct ef_worker *worker;

    if (stored->id != catalogue->version_count + 1 || !make_hash(names, 3, &version_hash) ||
        !make_hash(names, 2, &worker_hash))
        return ef_err_set(load->err, EF_ECORRUPT, "version %u of the store is out of order",
                          stored->id);
    if (find_version(catalogue, names[0], names[1], names[2], &version_hash) != NULL)
        return ef_err_set(load->err, EF_ECORRUPT, "version %u of the store is there twice",
                          stored->id);
    worker = find_worker(catalogue, names[0], names[1], &worker_hash);
    version = open_version(names[0], names[1], names[2], stored->created_ns);
    if (version == NULL ||
        !add_version(load->aggregate, version, version_hash, worker, worker_hash))
        return ef_err_set(load->err, EF_ENOMEM, "no memory for version %u", stored->id);
    return EF_OK;
}

static ef_rc
load_series(void *arg, const struct ef_store_series *stored)
{
    struct load *load = arg;
    struct ef_catalogue *catalogue = &load->aggregate->catalogue;
    struct ef_version *version;
    struct ef_place *place;
    uint64_t hash;

    if (stored->id != catalogue->series_count + 1 || stored->version_id == 0 ||
        stored->version_id > catalogue->version_count || stored->profile_type == 0 ||
        stored->profile_type >= EF_TYPE_COUNT)
        return ef_err_set(load->err, EF_ECORRUPT, "series %u of the store is damaged", stored->id);
    version = catalogue->versions[stored->version_id - 1];
    const char *names[] = {version->account, version->worker, version->version, stored->region};
    if (!make_hash(names, 4, &hash))
        return ef_err_set(load->err, EF_ECORRUPT, "series %u of the store is damaged", stored->id);
    place = find_place(catalogue, names[0], names[1], names[2], names[3], &hash);
    if (place == NULL) {
        ef_rc rc = add_place(load->aggregate, version, stored->region, hash, &place, load->err);
        if (rc != EF_OK)
            return rc;
    }
    if (add_series(load->aggregate, place, stored->profile_type) == 0)
        return ef_err_set(load->err, EF_ENOMEM, "no memory for series %u", stored->id);
    return EF_OK;
}

ef_rc
ef_catalogue_load(struct ef_aggregate *aggregate, struct ef_err *err)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;
    struct load load = {aggregate, err};
    ef_rc rc;

    /* The limits are on what is new: a store written under larger ones is still read whole. */
    ef_map_init(&catalogue->worker_of, SIZE_MAX);
    ef_map_init(&catalogue->version_of, SIZE_MAX);
    ef_map_init(&catalogue->place_of, SIZE_MAX);
    rc = ef_store_each_version(aggregate->store, load_version, &load, err);
    if (rc == EF_OK)
        rc = ef_store_each_series(aggregate->store, load_series, &load, err);
    catalogue->versions_put = catalogue->version_count;
    catalogue->series_put = catalogue->series_count;
    return rc;
}

void
ef_catalogue_fini(struct ef_catalogue *catalogue)
{
    for (uint32_t i = 0; i < catalogue->version_count; i++)
        ef_version_free(catalogue->versions[i]);
    for (uint32_t i = 0; i < catalogue->place_count; i++)
        free(catalogue->places[i]);
    free(catalogue->workers);
    free(catalogue->versions);
    free(catalogue->series);
    free(catalogue->places);
    ef_map_fini(&catalogue->worker_of);
    ef_map_fini(&catalogue->version_of);
    ef_map_fini(&catalogue->place_of);
}

ef_rc
ef_aggregate_each_version(struct ef_aggregate *aggregate, ef_store_version_fn fn, void *arg,
                          struct ef_err *err)
{
    ef_rc rc = EF_OK;

    pthread_mutex_lock(&aggregate->lock);
    for (uint32_t i = 0; i < aggregate->catalogue.version_count && rc == EF_OK; i++) {
        const struct ef_version *version = aggregate->catalogue.versions[i];
        struct ef_store_version row = {version->id, version->account, version->worker,
                                       version->version, version->created_ns};
        rc = fn(arg, &row);
    }
    pthread_mutex_unlock(&aggregate->lock);
    return rc == EF_OK ? rc : ef_err_set(err, rc, "iteration of versions stopped");
}

ef_rc
ef_aggregate_each_series(struct ef_aggregate *aggregate, ef_store_series_fn fn, void *arg,
                         struct ef_err *err)
{
    ef_rc rc = EF_OK;

    pthread_mutex_lock(&aggregate->lock);
    for (uint32_t i = 0; i < aggregate->catalogue.series_count && rc == EF_OK; i++) {
        const struct ef_series *series = &aggregate->catalogue.series[i];
        struct ef_store_series row = {i + 1, series->version_id, series->profile_type,
                                      series->region};
        rc = fn(arg, &row);
    }
    pthread_mutex_unlock(&aggregate->lock);
    return rc == EF_OK ? rc : ef_err_set(err, rc, "iteration of series stopped");
}
