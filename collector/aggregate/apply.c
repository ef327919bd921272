/*
 * Decides what happens to a batch: duplicate, refused for now, parked until its definitions come,
 * or applied whole. Takes the aggregate's lock for each try and gives it back when something must
 * be read from the store first.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/limit.h"
#include "proto/base/metric.h"
#include "proto/model/hash.h"

#include <stdlib.h>
#include <string.h>

/* Each try reads one of the two tables of a version of the batch, which has at most 4096 sources;
 * more tries mean that they are evicted as fast as they are read. */
#define TRIES_MAX 8200
#define PARKED_AGAIN_NS (INT64_C(1) * EF_NS_PER_S) /* pause after a try that found memory full */
#define FETCH_LOOKUPS 256u  /* a cache line each: a third of the first-level cache */
#define PAIR_BYTES 24u      /* upper estimate for one new pair */
#define FRAGMENT_BYTES 400u /* and for a new bucket */

struct job {
    struct ef_aggregate *aggregate;
    const uint8_t *publisher; /* NULL: an import */
    uint64_t epoch, sequence;
    const Everflame__V1__Batch *batch;
    int64_t now_ns;
    struct ef_parked *parked; /* NULL: fresh from the wire */
    struct ef_epoch nobody;   /* takes the counts of an import */
    bool final;               /* unknown stacks are booked as such, not waited for */
    bool recalled;            /* the epoch was looked for in the store */
    /* What a step found to be read first. */
    struct ef_version *need_version;
    unsigned need_parts;
    bool need_epoch;
    /* What a step found out. */
    uint64_t limit_samples, unknown_samples;
    size_t missing; /* unknown stacks to wait for */
    struct ef_err *err;
};

static ef_rc
need(struct job *job, struct ef_version *version, unsigned parts)
{
    job->need_version = version;
    job->need_parts = parts;
    return EF_EBUSY;
}

/* ---- sources ---- */

static uint64_t
instance_hash(const Everflame__V1__Source *source)
{
    char key[2 * (EF_STORE_NAME_MAX + 1)];
    size_t instance = strnlen(source->instance, EF_STORE_NAME_MAX);
    size_t host = strnlen(source->host, EF_STORE_NAME_MAX);

    memcpy(key, source->instance, instance);
    key[instance] = '\0';
    memcpy(key + instance + 1, source->host, host);
    return ef_hash(key, instance + 1 + host);
}

static ef_rc
resolve_sources(struct job *job)
{
    struct ef_scratch *scratch = &job->aggregate->scratch;
    void *array = scratch->sources;

    if (!ef_agg_grow(&array, &scratch->source_cap, job->batch->n_sources,
                     sizeof(*scratch->sources)))
        return ef_err_set(job->err, EF_ENOMEM, "no memory for sources");
    scratch->sources = array;
    for (size_t i = 0; i < job->batch->n_sources; i++) {
        const Everflame__V1__Source *source = job->batch->sources[i];
        struct ef_source_ref *ref = &scratch->sources[i];
        ef_rc rc;
        ref->place = NULL;
        rc = ef_catalogue_place(job->aggregate, source->account, source->worker, source->version,
                                source->region, job->now_ns, &ref->place, job->err);
        if (rc != EF_OK && rc != EF_ELIMIT)
            return rc;
        if (ref->place != NULL)
            ref->place->version->used_ns = job->now_ns;
        ref->instance = instance_hash(source);
    }
    return EF_OK;
}

static struct ef_version *
version_at(const struct job *job, uint32_t source)
{
    struct ef_place *place = job->aggregate->scratch.sources[source].place;

    return place == NULL ? NULL : place->version;
}

static bool
indexes_good(const Everflame__V1__Batch *batch)
{
    for (size_t i = 0; i < batch->n_fragments; i++) {
        const Everflame__V1__Fragment *fragment = batch->fragments[i];
        if (fragment->source >= batch->n_sources || fragment->n_count != fragment->n_stack ||
            (fragment->n_value != 0 && fragment->n_value != fragment->n_stack) ||
            fragment->profile_type <= 0 || fragment->profile_type >= EF_TYPE_COUNT)
            return false;
    }
    for (size_t i = 0; i < batch->n_definitions; i++) {
        if (batch->definitions[i]->source >= batch->n_sources)
            return false;
    }
    for (size_t i = 0; i < batch->n_usages; i++) {
        if (batch->usages[i]->source >= batch->n_sources)
            return false;
    }
    return true;
}

/* ---- definitions ---- */

static bool
any_unknown(const struct ef_version *version, const Everflame__V1__Definitions *definitions)
{
    for (size_t i = 0; i < definitions->n_stack_hash; i++) {
        if (ef_ids_find(&version->stacks, definitions->stack_hash[i]) == 0)
            return true;
    }
    /* A batch of functions alone is odd, but allowed. */
    return definitions->n_stack_hash == 0 && definitions->n_function_hash > 0;
}

/* EF_EBUSY with job->need_version set: tables must be read first. */
static ef_rc
take_definitions(struct job *job)
{
    struct ef_aggregate *aggregate = job->aggregate;
    bool wanted = false, added = false;
    ef_rc rc;

    for (size_t i = 0; i < job->batch->n_definitions; i++) {
        const Everflame__V1__Definitions *definitions = job->batch->definitions[i];
        struct ef_version *version = version_at(job, definitions->source);
        if (version == NULL)
            continue;
        if (!version->stacks_loaded)
            return need(job, version, EF_DICTIONARY_STACKS);
        if (!any_unknown(version, definitions))
            continue;
        if (!version->functions_loaded)
            return need(job, version, EF_DICTIONARY_FUNCTIONS);
        wanted = true;
    }
    if (!wanted)
        return EF_OK;
    rc = ef_definitions_accept(aggregate, job->batch, job->now_ns, &added, job->err);
    if (added && aggregate->delivery.parked_count > 0)
        aggregate->delivery.parked_ready = true;
    return rc;
}

/* ---- stacks ---- */

static ef_rc
reserved_stack(struct job *job, struct ef_version *version, const char *name, uint32_t *ret_id)
{
    uint32_t known =
        strcmp(name, EF_STACK_LIMIT_NAME) == 0 ? version->limit_stack : version->unknown_stack;

    if (known == 0 && !version->functions_loaded)
        return need(job, version, EF_DICTIONARY_FUNCTIONS);
    if (known == 0)
        known = ef_dictionary_reserved(job->aggregate, version, name);
    if (known == 0)
        return ef_err_set(job->err, EF_ENOMEM, "no memory for a reserved stack");
    *ret_id = known;
    return EF_OK;
}

/* Books a fragment's unknown stacks elsewhere, or counts them as missing. */
static ef_rc
replace_unknown(struct job *job, struct ef_version *version,
                const Everflame__V1__Fragment *fragment, uint32_t *ids, size_t unknown)
{
    bool full = !ef_dictionary_room(job->aggregate, version,
                                    EF_DICTIONARY_STACKS | EF_DICTIONARY_FUNCTIONS, job->now_ns);
    uint32_t id = 0;
    ef_rc rc;

    if (!full && !job->final) {
        job->missing += unknown;
        return EF_OK;
    }
    rc = reserved_stack(job, version, full ? EF_STACK_LIMIT_NAME : EF_STACK_UNKNOWN_NAME, &id);
    if (rc != EF_OK)
        return rc;
    for (size_t i = 0; i < fragment->n_stack; i++) {
        if (ids[i] != 0)
            continue;
        ids[i] = id;
        if (full)
            job->limit_samples += fragment->count[i];
        else
            job->unknown_samples += fragment->count[i];
    }
    return EF_OK;
}

/* Fetches for the fragments from `from` on; gives the end of those it fetched for. */
static size_t
fetch_ahead(const struct job *job, size_t from)
{
    size_t until = from, lookups = 0;

    for (; until < job->batch->n_fragments && lookups < FETCH_LOOKUPS; until++)
        lookups += job->batch->fragments[until]->n_stack;
    for (size_t i = from; i < until; i++) {
        const Everflame__V1__Fragment *fragment = job->batch->fragments[i];
        struct ef_version *version = version_at(job, fragment->source);
        size_t count = fragment->n_stack < FETCH_LOOKUPS ? fragment->n_stack : FETCH_LOOKUPS;
        if (version != NULL)
            ef_ids_fetch(&version->stacks, fragment->stack, count);
    }
    return until;
}

static ef_rc
resolve_fragment(struct job *job, const Everflame__V1__Fragment *fragment, uint32_t *ids)
{
    struct ef_version *version = version_at(job, fragment->source);
    size_t unknown;

    if (version == NULL)
        return EF_OK;
    if (!version->stacks_loaded)
        return need(job, version, EF_DICTIONARY_STACKS);
    unknown = ef_ids_find_many(&version->stacks, fragment->stack, fragment->n_stack, ids);
    return unknown == 0 ? EF_OK : replace_unknown(job, version, fragment, ids, unknown);
}

static ef_rc
resolve_stacks(struct job *job)
{
    struct ef_scratch *scratch = &job->aggregate->scratch;
    size_t total = 0, at = 0, fetched = 0;
    void *array = scratch->ids;

    for (size_t i = 0; i < job->batch->n_fragments; i++)
        total += job->batch->fragments[i]->n_stack;
    if (!ef_agg_grow(&array, &scratch->id_cap, total, sizeof(*scratch->ids)))
        return ef_err_set(job->err, EF_ENOMEM, "no memory for %zu stacks", total);
    scratch->ids = array;
    job->missing = 0;
    job->limit_samples = job->unknown_samples = 0;
    for (size_t i = 0; i < job->batch->n_fragments; i++) {
        const Everflame__V1__Fragment *fragment = job->batch->fragments[i];
        ef_rc rc;
        if (i == fetched)
            fetched = fetch_ahead(job, i);
        rc = resolve_fragment(job, fragment, scratch->ids + at);
        if (rc != EF_OK)
            return rc;
        at += fragment->n_stack;
    }
    return EF_OK;
}

/* ---- parking ---- */

static struct ef_missing *
list_missing(const struct job *job, uint32_t *ret_count)
{
    size_t cap = job->missing < EF_PARKED_MISSING_MAX ? job->missing : EF_PARKED_MISSING_MAX;
    struct ef_missing *missing = malloc(cap * sizeof(*missing));
    const uint32_t *ids = job->aggregate->scratch.ids;
    uint32_t count = 0;

    if (missing == NULL)
        return NULL;
    for (size_t i = 0; i < job->batch->n_fragments; i++) {
        const Everflame__V1__Fragment *fragment = job->batch->fragments[i];
        struct ef_version *version = version_at(job, fragment->source);
        for (size_t k = 0; k < fragment->n_stack && count < cap; k++) {
            if (version != NULL && ids[k] == 0)
                missing[count++] = (struct ef_missing){version->id, fragment->stack[k]};
        }
        ids += fragment->n_stack;
    }
    *ret_count = count;
    return missing;
}

/* Renews the list of a parked batch that was tried and still waits. */
static ef_rc
park_again(struct job *job)
{
    uint32_t count = 0;
    struct ef_missing *missing = list_missing(job, &count);

    if (missing == NULL)
        return ef_err_set(job->err, EF_ENOMEM, "no memory to park a batch");
    free(job->parked->missing);
    job->parked->missing = missing;
    job->parked->missing_count = count;
    job->parked->missing_at = 0;
    return ef_err_set(job->err, EF_ENOTFOUND, "%zu stacks are unknown", job->missing);
}

static void
free_parked(struct ef_parked *parked)
{
    free(parked->packed);
    free(parked->missing);
    free(parked);
}

/* Keeps a copy until the definitions come. A full yard refuses the newest: it comes again. */
static ef_rc
park(struct job *job, struct ef_epoch *epoch)
{
    struct ef_aggregate *aggregate = job->aggregate;
    struct ef_delivery *delivery = &aggregate->delivery;
    size_t packed_len = everflame__v1__batch__get_packed_size(job->batch);
    size_t bytes = sizeof(struct ef_parked) + packed_len + 3 * EF_MALLOC_OVERHEAD;
    struct ef_parked *parked;

    bytes += (job->missing < EF_PARKED_MISSING_MAX ? job->missing : EF_PARKED_MISSING_MAX) *
             sizeof(struct ef_missing);
    if (delivery->parked_bytes + bytes > aggregate->options.parked_bytes_max) {
        ef_metric_add(EF_METRIC_ingest_refused_busy_total, 1);
        return ef_err_set(job->err, EF_EBUSY, "%u batches wait for definitions already",
                          delivery->parked_count);
    }
    parked = calloc(1, sizeof(*parked));
    if (parked == NULL)
        return ef_err_set(job->err, EF_ENOMEM, "no memory to park a batch");
    parked->packed = malloc(packed_len > 0 ? packed_len : 1);
    parked->missing = list_missing(job, &parked->missing_count);
    if (parked->packed == NULL || parked->missing == NULL) {
        free_parked(parked);
        return ef_err_set(job->err, EF_ENOMEM, "no memory to park a batch");
    }
    parked->packed_len = everflame__v1__batch__pack(job->batch, parked->packed);
    parked->epoch = epoch;
    parked->sequence = job->sequence;
    parked->since_ns = job->now_ns;
    parked->bytes = bytes;
    *delivery->parked_tail = parked;
    delivery->parked_tail = &parked->next;
    delivery->parked_count++;
    delivery->parked_bytes += bytes;
    epoch->parked_count++;
    ef_metric_set(EF_METRIC_ingest_parked_batches, delivery->parked_count);
    return ef_err_set(job->err, EF_ENOTFOUND, "%zu stacks are unknown", job->missing);
}

static void
unpark(struct ef_aggregate *aggregate, struct ef_parked *parked)
{
    struct ef_delivery *delivery = &aggregate->delivery;
    struct ef_parked **link = &delivery->parked;

    while (*link != parked)
        link = &(*link)->next;
    *link = parked->next;
    if (delivery->parked_tail == &parked->next)
        delivery->parked_tail = link;
    delivery->parked_count--;
    delivery->parked_bytes -= parked->bytes;
    parked->epoch->parked_count--;
    ef_metric_set(EF_METRIC_ingest_parked_batches, delivery->parked_count);
    free_parked(parked);
}

/* ---- one try ---- */

static uint64_t
batch_samples(const Everflame__V1__Batch *batch)
{
    uint64_t samples = 0;

    for (size_t i = 0; i < batch->n_fragments; i++) {
        for (size_t k = 0; k < batch->fragments[i]->n_count; k++)
            samples = ef_sat_add_u64(samples, batch->fragments[i]->count[k]);
    }
    return samples;
}

static ef_rc
duplicate(struct job *job, struct ef_epoch *epoch)
{
    epoch->batches_duplicate++;
    epoch->samples_duplicate = ef_sat_add_u64(epoch->samples_duplicate, batch_samples(job->batch));
    epoch->dirty = true;
    ef_metric_add(EF_METRIC_ingest_duplicate_batches_total, 1);
    return ef_err_set(job->err, EF_EEXIST, "batch %llu was applied before",
                      (unsigned long long)job->sequence);
}

static uint64_t
estimate(const Everflame__V1__Batch *batch)
{
    uint64_t bytes = batch->n_fragments * FRAGMENT_BYTES;

    for (size_t i = 0; i < batch->n_fragments; i++)
        bytes += batch->fragments[i]->n_stack * PAIR_BYTES;
    return bytes;
}

static ef_rc
admit(struct job *job, struct ef_epoch **ret_epoch)
{
    struct ef_aggregate *aggregate = job->aggregate;
    ef_rc rc = ef_delivery_epoch(aggregate, job->publisher, job->epoch, job->recalled, job->now_ns,
                                 ret_epoch, job->err);

    if (rc == EF_ENOTFOUND) {
        job->need_epoch = true;
        return EF_EBUSY;
    }
    if (rc != EF_OK)
        return rc;
    (*ret_epoch)->publisher->seen_ns = job->now_ns;
    if (ef_epoch_has(*ret_epoch, job->sequence) ||
        (job->parked == NULL && ef_delivery_is_parked(aggregate, *ret_epoch, job->sequence)))
        return duplicate(job, *ret_epoch);
    if (!ef_epoch_can_mark(aggregate, *ret_epoch, job->sequence)) {
        ef_metric_add(EF_METRIC_ingest_refused_busy_total, 1);
        return ef_err_set(job->err, EF_EBUSY, "batch %llu is too far above the first missing one",
                          (unsigned long long)job->sequence);
    }
    if (ef_agg_full(aggregate, estimate(job->batch))) {
        ef_metric_add(EF_METRIC_ingest_refused_busy_total, 1);
        return ef_err_set(job->err, EF_EBUSY, "the memory for open buckets is full");
    }
    return EF_OK;
}

/* Books a batch whose stacks all have ids. */
static ef_rc
book(struct job *job, struct ef_epoch *epoch)
{
    struct ef_aggregate *aggregate = job->aggregate;
    size_t refused = 0;
    ef_rc rc = ef_plan_batch(aggregate, job->batch, job->now_ns, &refused, job->err);

    if (rc != EF_OK)
        return rc;
    if (refused > 0 && job->publisher == NULL) {
        ef_plan_undo(aggregate, job->batch->n_fragments);
        return ef_err_set(job->err, EF_ELIMIT, "too much for one profile, or too many series");
    }
    ef_book_batch(aggregate, job->batch, epoch);
    if (job->publisher != NULL)
        ef_epoch_mark(epoch, job->sequence);
    epoch->updated_ns = job->now_ns;
    if (job->limit_samples > 0)
        ef_metric_add(EF_METRIC_limit_stacks_total, job->limit_samples);
    if (job->unknown_samples > 0)
        ef_metric_add(EF_METRIC_ingest_unknown_stacks_total, job->unknown_samples);
    if (refused > 0)
        return ef_err_set(job->err, EF_ELIMIT, "%zu fragments are outside the limits", refused);
    return EF_OK;
}

static ef_rc
step(struct job *job)
{
    struct ef_epoch *epoch = &job->nobody;
    ef_rc rc = EF_OK;

    if (job->publisher != NULL)
        rc = admit(job, &epoch);
    else if (ef_agg_full(job->aggregate, estimate(job->batch)))
        rc = ef_err_set(job->err, EF_EBUSY, "the memory for open buckets is full");
    if (rc == EF_OK)
        rc = resolve_sources(job);
    if (rc == EF_OK)
        rc = take_definitions(job);
    if (rc == EF_OK)
        rc = resolve_stacks(job);
    if (rc != EF_OK)
        return rc;
    if (job->missing > 0)
        return job->parked == NULL ? park(job, epoch) : park_again(job);
    return book(job, epoch);
}

/* Reads what the last step found missing. Without the lock. */
static ef_rc
fetch(struct job *job)
{
    if (job->need_epoch) {
        job->recalled = true;
        return ef_delivery_recall(job->aggregate, job->publisher, job->epoch, job->now_ns,
                                  job->err);
    }
    return ef_dictionary_load(job->aggregate, job->need_version, job->need_parts, job->err);
}

static ef_rc
run(struct job *job)
{
    for (unsigned tries = 0; tries < TRIES_MAX; tries++) {
        ef_rc rc;
        job->need_version = NULL;
        job->need_epoch = false;
        pthread_mutex_lock(&job->aggregate->lock);
        rc = step(job);
        if (job->need_version != NULL)
            ef_dictionary_evict(job->aggregate, 0, job->now_ns);
        pthread_mutex_unlock(&job->aggregate->lock);
        if (job->need_version == NULL && !job->need_epoch)
            return rc;
        rc = fetch(job);
        if (rc != EF_OK)
            return rc;
    }
    return ef_err_set(job->err, EF_EBUSY, "definitions do not fit into memory");
}

ef_rc
ef_aggregate_apply(struct ef_aggregate *aggregate, const uint8_t publisher[16], uint64_t epoch,
                   uint64_t sequence, const Everflame__V1__Batch *batch, int64_t now_ns,
                   struct ef_err *err)
{
    struct job job = {.aggregate = aggregate,
                      .publisher = publisher,
                      .epoch = epoch,
                      .sequence = sequence,
                      .batch = batch,
                      .now_ns = now_ns,
                      .err = err};
    ef_rc rc;

    if (sequence == 0 || sequence == UINT64_MAX || !indexes_good(batch))
        return ef_err_set(err, EF_EINVAL, "a batch without a number, or with bad columns");
    rc = run(&job);
    ef_apply_parked(aggregate, now_ns);
    return rc;
}

ef_rc
ef_apply_unnumbered(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                    int64_t now_ns, struct ef_err *err)
{
    struct job job = {
        .aggregate = aggregate, .batch = batch, .now_ns = now_ns, .final = true, .err = err};
    ef_rc rc = run(&job);

    ef_apply_parked(aggregate, now_ns);
    return rc;
}

/* ---- parked batches again ---- */

static bool
has_come(struct ef_aggregate *aggregate, struct ef_parked *parked)
{
    while (parked->missing_at < parked->missing_count) {
        const struct ef_missing *missing = &parked->missing[parked->missing_at];
        struct ef_version *version = aggregate->catalogue.versions[missing->version_id - 1];
        /* An evicted table is read by the try itself. */
        if (version->stacks_loaded && ef_ids_find(&version->stacks, missing->hash) == 0)
            return false;
        parked->missing_at++;
    }
    return true;
}

static bool
overdue(const struct ef_aggregate *aggregate, const struct ef_parked *parked, int64_t now_ns)
{
    return now_ns - parked->since_ns >= (int64_t)aggregate->options.parked_wait_ms * EF_NS_PER_MS;
}

/* The next parked batch to try, or NULL. */
static struct ef_parked *
pick(struct ef_aggregate *aggregate, int64_t now_ns)
{
    struct ef_delivery *delivery = &aggregate->delivery;

    if (delivery->parked == NULL ||
        (!delivery->parked_ready && !overdue(aggregate, delivery->parked, now_ns)))
        return NULL;
    for (struct ef_parked *parked = delivery->parked; parked != NULL; parked = parked->next) {
        if (!parked->taken && parked->again_ns <= now_ns &&
            (overdue(aggregate, parked, now_ns) || has_come(aggregate, parked)))
            return parked;
    }
    delivery->parked_ready = false;
    return NULL;
}

static ef_rc
try_parked(struct ef_aggregate *aggregate, struct ef_parked *parked, int64_t now_ns)
{
    struct job job = {.aggregate = aggregate,
                      .publisher = parked->epoch->publisher->id,
                      .epoch = parked->epoch->epoch,
                      .sequence = parked->sequence,
                      .now_ns = now_ns,
                      .parked = parked,
                      .final = overdue(aggregate, parked, now_ns)};
    Everflame__V1__Batch *batch =
        everflame__v1__batch__unpack(NULL, parked->packed_len, parked->packed);
    ef_rc rc;

    if (batch == NULL)
        return EF_EBUSY; /* it was packed by us, so memory is short */
    job.batch = batch;
    rc = run(&job);
    everflame__v1__batch__free_unpacked(batch, NULL);
    return rc;
}

void
ef_apply_parked(struct ef_aggregate *aggregate, int64_t now_ns)
{
    pthread_mutex_lock(&aggregate->lock);
    for (;;) {
        struct ef_parked *parked = pick(aggregate, now_ns);
        ef_rc rc;
        if (parked == NULL)
            break;
        parked->taken = true; /* nobody else frees it while we are without the lock */
        pthread_mutex_unlock(&aggregate->lock);
        rc = try_parked(aggregate, parked, now_ns);
        pthread_mutex_lock(&aggregate->lock);
        parked->taken = false;
        if (rc == EF_OK || rc == EF_ELIMIT || rc == EF_EEXIST)
            unpark(aggregate, parked);
        else if (rc != EF_ENOTFOUND)
            parked->again_ns = now_ns + PARKED_AGAIN_NS;
    }
    pthread_mutex_unlock(&aggregate->lock);
}
