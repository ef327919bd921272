/*
 * Writes what is known of publishers, targets and the aggregate itself for GET /api/v1/status. Runs
 * under the aggregate's lock: it writes to memory only.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/json.h"
#include "proto/base/limit.h"
#include "proto/base/text.h"

#include <stdlib.h>
#include <string.h>

#define CONNECTED_NS (INT64_C(5) * EF_NS_PER_S)     /* five sync intervals */
#define TARGETS_LIFE_NS (INT64_C(60) * EF_NS_PER_S) /* an agent that is silent longer has gone */

struct sums {
    uint64_t published, stored, lost, late, duplicate;
};

static void
add_epoch(struct sums *sums, const struct ef_epoch *epoch)
{
    uint64_t known = ef_sat_add_u64(epoch->samples_stored, epoch->samples_lost);
    uint64_t said = epoch->samples_published;

    /* A publisher that has gone since we started has said nothing: then what we know of it. */
    sums->published = ef_sat_add_u64(sums->published, said > known ? said : known);
    sums->stored = ef_sat_add_u64(sums->stored, epoch->samples_stored);
    sums->lost = ef_sat_add_u64(sums->lost, epoch->samples_lost);
    sums->late = ef_sat_add_u64(sums->late, epoch->samples_late);
    sums->duplicate = ef_sat_add_u64(sums->duplicate, epoch->samples_duplicate);
}

static void
write_sums(struct ef_json *json, const struct sums *sums)
{
    ef_json_key(json, "samples");
    ef_json_object(json);
    ef_json_ku64(json, "published", sums->published);
    ef_json_ku64(json, "stored", sums->stored);
    ef_json_ku64(json, "lost", sums->lost);
    ef_json_ku64(json, "late", sums->late);
    ef_json_ku64(json, "duplicate", sums->duplicate);
    ef_json_object_end(json);
}

static void
write_time(struct ef_json *json, const char *key, int64_t at_ns)
{
    char text[40];

    if (at_ns <= 0) {
        ef_json_key(json, key);
        ef_json_null(json);
        return;
    }
    ef_json_kstr(json, key, ef_wall_format((ef_wall_ns){at_ns}, text, sizeof(text)));
}

static void
write_publisher(const struct ef_publisher_view *publisher, const struct sums *sums, int64_t now_ns,
                struct ef_json *json)
{
    char id[33];

    ef_hex_write(id, publisher->id, 16);
    ef_json_object(json);
    ef_json_kstr(json, "name", publisher->name);
    ef_json_kstr(json, "publisher", id);
    ef_json_ku64(json, "epoch", publisher->epoch);
    write_time(json, "last_seen", publisher->seen_ns);
    ef_json_kbool(json, "connected",
                  publisher->synced_ns != 0 && now_ns - publisher->synced_ns <= CONNECTED_NS);
    write_sums(json, sums);
    ef_json_ku64(json, "spool_bytes", publisher->spool_bytes);
    ef_json_ku64(json, "spool_bytes_max", publisher->spool_bytes_max);
    ef_json_object_end(json);
}

/* Sums of each publisher's epochs, by its place in the list; NULL: no memory. */
static struct sums *
sums_by_publisher(const struct ef_delivery *delivery, struct sums *all)
{
    struct sums *sums = calloc((size_t)delivery->publisher_count + 1, sizeof(*sums));
    struct ef_map place;
    bool is_new;

    ef_map_init(&place, (size_t)delivery->publisher_count + 1);
    for (uint32_t i = 0; sums != NULL && i < delivery->publisher_count; i++) {
        uint64_t *at = ef_map_upsert(&place, (uint64_t)(uintptr_t)delivery->publishers[i], &is_new);
        if (at != NULL)
            *at = i;
    }
    for (uint32_t i = 0; i < delivery->epoch_count; i++) {
        const struct ef_epoch *epoch = delivery->epochs[i];
        const uint64_t *at = ef_map_get(&place, (uint64_t)(uintptr_t)epoch->publisher);
        add_epoch(all, epoch);
        if (sums != NULL && at != NULL)
            add_epoch(&sums[*at], epoch);
    }
    ef_map_fini(&place);
    return sums;
}

static void
write_publishers(const struct ef_aggregate *aggregate, int64_t now_ns, struct ef_json *json)
{
    const struct ef_delivery *delivery = &aggregate->delivery;
    struct sums all = {0};
    struct sums *sums = sums_by_publisher(delivery, &all);

    write_sums(json, &all);
    ef_json_key(json, "publishers");
    ef_json_array(json);
    for (uint32_t i = 0; sums != NULL && i < delivery->publisher_count; i++)
        write_publisher(delivery->publishers[i], &sums[i], now_ns, json);
    ef_json_array_end(json);
    free(sums);
}

static void
write_target(const Everflame__V1__TargetStatus *target, struct ef_json *json)
{
    const Everflame__V1__Source *source = target->source;

    ef_json_object(json);
    ef_json_kstr(json, "account", source->account);
    ef_json_kstr(json, "worker", source->worker);
    ef_json_kstr(json, "version", source->version);
    ef_json_kstr(json, "instance", source->instance);
    ef_json_kstr(json, "host", source->host);
    ef_json_kstr(json, "runtime", source->runtime);
    ef_json_kstr(json, "inspector", target->inspector);
    ef_json_ku64(json, "pid", target->pid);
    ef_json_kstr(json, "state", target->state);
    ef_json_kstr(json, "message", target->message);
    ef_json_ku64(json, "samples", target->samples);
    ef_json_ku64(json, "samples_starved", target->samples_starved);
    write_time(json, "sampled_until", target->sampled_until_ns);
    ef_json_kf64(json, "process_cpu_ratio", target->process_cpu_ratio);
    ef_json_key(json, "sampling_cost");
    ef_json_object(json);
    ef_json_kf64(json, "cpu_ratio", target->cpu_ratio);
    ef_json_kf64(json, "pause_ms_max", target->pause_ms_max);
    ef_json_kf64(json, "pause_ratio", target->pause_ratio);
    ef_json_object_end(json);
    ef_json_object_end(json);
}

/* The cost alone, as a flat list: for whoever watches what sampling costs a worker. */
static void
write_cost(const Everflame__V1__TargetStatus *target, struct ef_json *json)
{
    ef_json_object(json);
    ef_json_kstr(json, "worker", target->source->worker);
    ef_json_kstr(json, "version", target->source->version);
    ef_json_kstr(json, "instance", target->source->instance);
    ef_json_kf64(json, "cpu_ratio", target->cpu_ratio);
    ef_json_kf64(json, "pause_ms_max", target->pause_ms_max);
    ef_json_object_end(json);
}

static void
forget_old_targets(struct ef_aggregate *aggregate, int64_t now_ns)
{
    for (uint32_t i = 0; i < aggregate->delivery.publisher_count; i++) {
        struct ef_publisher_view *publisher = aggregate->delivery.publishers[i];
        if (publisher->targets == NULL || now_ns - publisher->synced_ns <= TARGETS_LIFE_NS)
            continue;
        aggregate->delivery_bytes -= publisher->targets_len;
        free(publisher->targets);
        publisher->targets = NULL;
        publisher->targets_len = 0;
    }
}

static void
write_targets(const struct ef_aggregate *aggregate, const char *key,
              void (*write)(const Everflame__V1__TargetStatus *target, struct ef_json *json),
              struct ef_json *json)
{
    ef_json_key(json, key);
    ef_json_array(json);
    for (uint32_t i = 0; i < aggregate->delivery.publisher_count; i++) {
        const struct ef_publisher_view *publisher = aggregate->delivery.publishers[i];
        Everflame__V1__SyncRequest *request = NULL;
        if (publisher->targets != NULL)
            request = everflame__v1__sync_request__unpack(NULL, publisher->targets_len,
                                                          publisher->targets);
        for (size_t k = 0; request != NULL && k < request->n_targets; k++) {
            if (request->targets[k]->source != NULL)
                write(request->targets[k], json);
        }
        if (request != NULL)
            everflame__v1__sync_request__free_unpacked(request, NULL);
    }
    ef_json_array_end(json);
}

static void
write_self(const struct ef_aggregate *aggregate, struct ef_json *json)
{
    ef_json_key(json, "aggregate");
    ef_json_object(json);
    ef_json_ku64(json, "bytes", ef_agg_bytes(aggregate));
    ef_json_ku64(json, "bytes_max", aggregate->options.memory_bytes_max);
    ef_json_ku64(json, "dictionary_bytes", aggregate->dictionary_bytes);
    ef_json_ku64(json, "open_bytes", aggregate->open_bytes);
    ef_json_ku64(json, "workers", aggregate->catalogue.worker_count);
    ef_json_ku64(json, "versions", aggregate->catalogue.version_count);
    ef_json_ku64(json, "series", aggregate->catalogue.series_count);
    ef_json_ku64(json, "open_buckets", aggregate->open_count);
    ef_json_ku64(json, "epochs", aggregate->delivery.epoch_count);
    ef_json_ku64(json, "parked_batches", aggregate->delivery.parked_count);
    ef_json_ku64(json, "parked_bytes", aggregate->delivery.parked_bytes);
    ef_json_ku64(json, "definitions_refused", aggregate->definitions_refused);
    ef_json_kbool(json, "flush_failed", aggregate->flush_failed);
    ef_json_object_end(json);
}

void
ef_aggregate_status(struct ef_aggregate *aggregate, int64_t now_ns, struct ef_json *json)
{
    pthread_mutex_lock(&aggregate->lock);
    write_publishers(aggregate, now_ns, json);
    forget_old_targets(aggregate, now_ns);
    write_targets(aggregate, "targets", write_target, json);
    write_targets(aggregate, "sampling_cost", write_cost, json);
    write_self(aggregate, json);
    pthread_mutex_unlock(&aggregate->lock);
}
