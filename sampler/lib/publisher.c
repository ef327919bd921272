/*
 * Decides when a batch is closed, when a sync is made, and what a reply leads to. Must not know the
 * formats (batch.c, request.c, folder.c) or nng (link.c). Callers' threads fill the batch under the
 * lock; one thread of our own sends, asks and applies replies, so that nothing else waits for the
 * network.
 *
 * One lock guards batch, dictionary, spool and targets. The spool file is written with it held:
 * records of an epoch must come in the order of their numbers.
 */
#include "sampler/lib/publisher.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/utf8.h"
#include "sampler/lib/batch.h"
#include "sampler/lib/dictionary.h"
#include "sampler/lib/link.h"
#include "sampler/lib/request.h"
#include "sampler/lib/spool.h"
#include "sampler/lib/targets.h"

#define SPOOL_BYTES_DEFAULT (UINT64_C(64) << 20)
#define STACKS_DEFAULT 262144u
#define BATCH_FRAGMENTS_DEFAULT 64u
#define BATCH_BYTES_DEFAULT 262144u
#define BATCH_BYTES_MAX                                                                            \
    (EF_WIRE_BATCH_BYTES_MAX - 131072u) /* fits even if it does not compress                       \
                                         */
#define BATCH_BYTES_MIN 4096u
#define DELAY_MS_DEFAULT 1000u
#define SYNC_MS_DEFAULT 1000u
#define VERSIONS_PER_ANSWER 256u /* each may need a source of its own in the batch */

/* Resending doubles while it helps and halves when it does not. */
#define RESEND_BYTES_MIN 65536u
#define RESEND_BYTES_START 262144u
#define RESEND_BYTES_MAX (8u << 20)
#define RESEND_BATCHES_MAX 4096u
#define SEND_NS_PER_BYTE 10 /* a burst leaves at 100 MB/s, as a gigabit network takes it */
#define RESEND_SYNC_MS 100u /* between syncs while something is missing */
#define DRAIN_SYNC_MS 20u   /* between syncs while somebody waits in drain */
/* What was sent less than this before the request may still be on its way (other connection). */
#define IN_FLIGHT_NS (200 * EF_NS_PER_MS)
/* An unanswered request counts as failed after this; the collector may hold replies back a while.
 */
#define UNANSWERED_NS (30 * EF_NS_PER_S)

struct ef_publisher {
    pthread_mutex_t lock; /* rank: below nothing, above nothing; nng is never called with it held */
    pthread_cond_t wake;  /* our thread waits here */
    pthread_cond_t progress; /* drain waits here */
    /* Guarded by lock. */
    struct ef_batch batch;
    struct ef_dictionary dictionary;
    struct ef_spool spool;
    struct ef_targets targets;
    struct ef_buf packed; /* a batch being packed */
    uint64_t *hashes;     /* scratch of add */
    size_t hash_cap;
    unsigned draining;
    bool stop, woken;
    bool answered; /* the last sync was */
    uint64_t batches_resent, syncs_answered, syncs_failed;
    /* Set at open. */
    struct ef_wire_keys *keys;
    struct ef_link *link;
    char *name;
    uint32_t batch_fragments_max;
    size_t batch_bytes_max;
    int64_t batch_delay_ns, sync_interval_ns;
    void (*directive)(void *arg, const struct ef_directive *directive);
    void *arg;
    /* Of our thread alone. */
    pthread_t thread;
    bool thread_runs;
    struct ef_wire_reader *reader;
    struct ef_buf request, sending;
    uint64_t request_number;
    bool request_out, request_failed;
    ef_mono_ns request_time, next_sync;
    uint64_t resend_bytes;
};

/* ---- batches; the lock is held ---- */

static void
clear_pending(struct ef_dictionary *dictionary)
{
    for (size_t i = 0; i < dictionary->version_count; i++) {
        dictionary->versions[i]->pending_stacks.count = 0;
        dictionary->versions[i]->pending_functions.count = 0;
    }
}

/* Gives the batch its number and spools it. Out of memory leaves it open to be tried again. */
static ef_rc
close_batch(struct ef_publisher *publisher, struct ef_err *err)
{
    struct ef_spool *spool = &publisher->spool;
    struct ef_spool_epoch *epoch = ef_spool_present(spool);
    struct ef_wire_header header = {.epoch = epoch->epoch, .sequence = epoch->last_sequence + 1};
    uint8_t *data;
    ef_rc rc;

    if (ef_batch_is_empty(&publisher->batch))
        return EF_OK;
    memcpy(header.publisher, spool->publisher, sizeof(header.publisher));
    rc = ef_batch_pack(&publisher->batch, &publisher->dictionary, publisher->keys, &header,
                       &publisher->packed, err);
    if (rc == EF_OK) {
        data = malloc(publisher->packed.len);
        if (data == NULL)
            return ef_err_set(err, EF_ENOMEM, "no memory to spool a batch");
        memcpy(data, publisher->packed.data, publisher->packed.len);
        rc = ef_spool_add(spool, data, publisher->packed.len,
                          (uint32_t)publisher->batch.fragment_count, publisher->batch.samples, err);
    }
    if (rc == EF_ENOMEM)
        return rc;
    if (rc != EF_OK) { /* would come again for ever; what was checked at add is not refused here */
        spool->fragments_lost += publisher->batch.fragment_count;
        spool->samples_lost += publisher->batch.samples;
    }
    ef_batch_clear(&publisher->batch);
    clear_pending(&publisher->dictionary);
    publisher->woken = true;
    pthread_cond_signal(&publisher->wake);
    return rc;
}

static void
note_opened(struct ef_publisher *publisher, bool was_empty)
{
    if (!was_empty || ef_batch_is_empty(&publisher->batch))
        return;
    publisher->batch.opened = ef_mono_now();
    publisher->woken = true; /* our thread has a new deadline */
    pthread_cond_signal(&publisher->wake);
}

/* A definition became pending. Definitions may travel before the fragment that needs them. */
static void
definition_added(void *arg, size_t bytes)
{
    struct ef_publisher *publisher = arg;
    bool was_empty = ef_batch_is_empty(&publisher->batch);

    publisher->batch.wire_bytes += bytes;
    note_opened(publisher, was_empty);
    if (publisher->batch.wire_bytes >= publisher->batch_bytes_max)
        EF_IGNORE(close_batch(publisher, NULL), "tried again with the next");
}

/* Closes a batch that is full in any way. */
static ef_rc
close_if_full(struct ef_publisher *publisher, struct ef_err *err)
{
    const struct ef_batch *batch = &publisher->batch;

    if (batch->fragment_count < publisher->batch_fragments_max &&
        ef_batch_has_room(batch, 0, publisher->batch_bytes_max - 1))
        return EF_OK;
    return close_batch(publisher, err);
}

/* Makes room for an item, or says that memory is short. */
static ef_rc
make_room(struct ef_publisher *publisher, size_t bytes, struct ef_err *err)
{
    if (ef_batch_is_empty(&publisher->batch) ||
        ef_batch_has_room(&publisher->batch, bytes, publisher->batch_bytes_max))
        return EF_OK;
    return close_batch(publisher, err);
}

/* What ef_batch_check does not see: it looks at merged rows. */
static ef_rc
check_samples(const struct ef_fragment *fragment, struct ef_err *err)
{
    uint64_t total = 0;

    if (fragment->sample_count > 0 &&
        (fragment->profile == NULL || fragment->hashes == NULL || fragment->samples == NULL))
        return ef_err_set(err, EF_EINVAL, "fragment has samples, but no profile or hashes");
    if (fragment->sample_count > EF_WIRE_PAIRS_MAX)
        return ef_err_set(err, EF_ELIMIT, "fragment has %zu stacks, more than %d",
                          fragment->sample_count, EF_WIRE_PAIRS_MAX);
    for (size_t i = 0; i < fragment->sample_count; i++) {
        const struct ef_fragment_sample *sample = &fragment->samples[i];
        if (sample->node == 0 || sample->node >= fragment->profile->node_count)
            return ef_err_set(err, EF_EINVAL, "sample %zu: no node %" PRIu32, i, sample->node);
        if (sample->count == 0 || sample->value < 0)
            return ef_err_set(err, EF_EINVAL, "sample %zu: count is 0 or value is negative", i);
        if (__builtin_add_overflow(total, sample->count, &total))
            return ef_err_set(err, EF_EINVAL, "sum of counts overflows");
    }
    if (fragment->tick_count != 0 && (fragment->tick_ms == NULL || fragment->tick_count != total))
        return ef_err_set(err, EF_EINVAL, "%zu ticks for %" PRIu64 " samples", fragment->tick_count,
                          total);
    return EF_OK;
}

static ef_rc
define_stacks(struct ef_publisher *publisher, const struct ef_fragment *fragment,
              struct ef_err *err)
{
    struct ef_dictionary_version *version = NULL;
    ef_rc rc;

    if (fragment->sample_count > publisher->hash_cap) {
        uint64_t *hashes = realloc(publisher->hashes, fragment->sample_count * sizeof(*hashes));
        if (hashes == NULL)
            return ef_err_set(err, EF_ENOMEM, "no memory for %zu stacks", fragment->sample_count);
        publisher->hashes = hashes;
        publisher->hash_cap = fragment->sample_count;
    }
    rc = ef_dictionary_version(&publisher->dictionary, fragment->source.account,
                               fragment->source.worker, fragment->source.version, ef_mono_now(),
                               &version, err);
    for (size_t i = 0; i < fragment->sample_count && rc == EF_OK; i++)
        rc = ef_dictionary_define(&publisher->dictionary, version, fragment->profile,
                                  fragment->hashes, fragment->samples[i].node,
                                  &publisher->hashes[i], err);
    return rc;
}

static ef_rc
add_fragment(struct ef_publisher *publisher, const struct ef_fragment *fragment, struct ef_err *err)
{
    struct ef_batch *batch = &publisher->batch;
    size_t source_bytes = ef_batch_source_bytes(&fragment->source), bytes;
    Everflame__V1__Fragment *made = NULL;
    ef_rc rc = define_stacks(publisher, fragment, err);

    if (rc == EF_OK)
        rc = ef_batch_make_fragment(batch, fragment, publisher->hashes, &made, err);
    if (rc == EF_OK)
        rc = ef_batch_check(&fragment->source, made, NULL, err);
    if (rc != EF_OK)
        return rc;
    bytes = protobuf_c_message_get_packed_size(&made->base) + source_bytes + 16;
    if (bytes > EF_BATCH_FRAGMENT_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "fragment of %zu bytes is larger than %u", bytes,
                          EF_BATCH_FRAGMENT_BYTES_MAX);
    if (!ef_batch_is_empty(batch) && !ef_batch_has_room(batch, bytes, publisher->batch_bytes_max)) {
        rc = close_batch(publisher, err);
        if (rc == EF_OK) /* the memory of `made` went with the batch */
            rc = ef_batch_make_fragment(batch, fragment, publisher->hashes, &made, err);
    }
    if (rc == EF_OK)
        rc = ef_batch_add_fragment(batch, &fragment->source, made, err);
    return rc;
}

ef_rc
ef_publisher_add(struct ef_publisher *publisher, const struct ef_fragment *fragment,
                 struct ef_err *err)
{
    ef_rc rc = ef_batch_check(&fragment->source, NULL, NULL, err);
    bool was_empty;

    if (rc == EF_OK)
        rc = check_samples(fragment, err);
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&publisher->lock);
    was_empty = ef_batch_is_empty(&publisher->batch);
    rc = add_fragment(publisher, fragment, err);
    if (ef_batch_is_empty(&publisher->batch))
        ef_batch_clear(&publisher->batch); /* gives back the memory of a refused fragment */
    note_opened(publisher, was_empty);
    if (rc == EF_OK)
        rc = close_if_full(publisher, err);
    pthread_mutex_unlock(&publisher->lock);
    return rc;
}

ef_rc
ef_publisher_add_usage(struct ef_publisher *publisher, const struct ef_usage *usage,
                       struct ef_err *err)
{
    Everflame__V1__Usage borrowed = EVERFLAME__V1__USAGE__INIT;
    bool was_empty;
    ef_rc rc;

    borrowed.start_ns = usage->start_ns;
    borrowed.span_ns = usage->span_ns;
    borrowed.cpu_ns = usage->cpu_ns;
    borrowed.hot_span_ns = usage->hot_span_ns;
    borrowed.hot_cpu_ns = usage->hot_cpu_ns;
    borrowed.isolates = usage->isolates;
    rc = ef_batch_check(&usage->source, NULL, &borrowed, err);
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&publisher->lock);
    rc = make_room(publisher,
                   protobuf_c_message_get_packed_size(&borrowed.base) +
                       ef_batch_source_bytes(&usage->source) + 16,
                   err);
    was_empty = ef_batch_is_empty(&publisher->batch);
    if (rc == EF_OK)
        rc = ef_batch_add_usage(&publisher->batch, usage, err);
    note_opened(publisher, was_empty);
    if (rc == EF_OK)
        rc = close_if_full(publisher, err);
    pthread_mutex_unlock(&publisher->lock);
    return rc;
}

void
ef_publisher_set_targets(struct ef_publisher *publisher, const struct ef_target_status *targets,
                         size_t count)
{
    pthread_mutex_lock(&publisher->lock);
    ef_targets_set(&publisher->targets, targets, count);
    pthread_mutex_unlock(&publisher->lock);
}

ef_rc
ef_publisher_flush(struct ef_publisher *publisher, struct ef_err *err)
{
    ef_rc rc;

    pthread_mutex_lock(&publisher->lock);
    rc = close_batch(publisher, err);
    pthread_mutex_unlock(&publisher->lock);
    return rc;
}

/* ---- our thread ---- */

static void
wake(void *arg)
{
    struct ef_publisher *publisher = arg;

    pthread_mutex_lock(&publisher->lock);
    publisher->woken = true;
    pthread_cond_signal(&publisher->wake);
    pthread_mutex_unlock(&publisher->lock);
}

static void
lock(struct ef_publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
}

static void
unlock(struct ef_publisher *publisher)
{
    pthread_mutex_unlock(&publisher->lock);
}

/* Copies one batch under the lock; false: none is to be sent, or it is time to stop. */
static bool
take_to_send(struct ef_publisher *publisher)
{
    const struct ef_spool_batch *batch;
    bool found;

    ef_buf_clear(&publisher->sending);
    lock(publisher);
    batch = publisher->stop ? NULL : ef_spool_next_to_send(&publisher->spool, ef_mono_now());
    found = batch != NULL;
    if (found && batch->resent)
        publisher->batches_resent++;
    if (found)
        ef_buf_append(&publisher->sending, batch->data, batch->len);
    unlock(publisher);
    return found;
}

/* PUB drops the oldest when its queue is full, so a burst is given time to leave. */
static void
send_batches(struct ef_publisher *publisher)
{
    size_t slice = ef_link_queue_messages(publisher->link) / 2, messages = 0;
    int64_t bytes = 0;

    while (take_to_send(publisher)) {
        if (publisher->sending.failed) /* the sync finds it missing */
            continue;
        ef_link_publish(publisher->link, publisher->sending.data, publisher->sending.len);
        bytes += (int64_t)publisher->sending.len;
        if (++messages % slice == 0) {
            int64_t pause_ns = EF_NS_PER_MS + bytes * SEND_NS_PER_BYTE;
            struct timespec pause = {.tv_sec = pause_ns / EF_NS_PER_S,
                                     .tv_nsec = pause_ns % EF_NS_PER_S};
            nanosleep(&pause, NULL);
            bytes = 0;
        }
    }
}

static void
note_failed(struct ef_publisher *publisher)
{
    lock(publisher);
    publisher->answered = false;
    publisher->syncs_failed++;
    unlock(publisher);
}

static void
start_sync(struct ef_publisher *publisher, ef_mono_ns now)
{
    ef_rc rc;

    lock(publisher);
    rc = ef_request_encode(&publisher->spool, &publisher->targets, publisher->name,
                           ++publisher->request_number, &publisher->request, NULL);
    unlock(publisher);
    if (rc == EF_OK)
        rc =
            ef_link_request(publisher->link, publisher->request.data, publisher->request.len, NULL);
    publisher->request_time = now;
    publisher->request_out = rc == EF_OK;
    publisher->request_failed = false;
    if (rc != EF_OK) {
        note_failed(publisher);
        publisher->next_sync.ns = now.ns + publisher->sync_interval_ns;
    }
}

/* Answers what the collector does not know, in numbered batches of their own. The lock is held. */
static void
answer_wanted(struct ef_publisher *publisher, const Everflame__V1__SyncReply *reply, ef_mono_ns now)
{
    unsigned versions = 0;

    for (size_t i = 0; i < reply->n_wanted; i++) {
        const Everflame__V1__Wanted *wanted = reply->wanted[i];
        struct ef_dictionary_version *version = ef_dictionary_find(
            &publisher->dictionary, wanted->account, wanted->worker, wanted->version);
        if (version == NULL)
            continue;
        if (versions++ % VERSIONS_PER_ANSWER == 0)
            EF_IGNORE(close_batch(publisher, NULL), "the answer then joins the open batch");
        for (size_t k = 0; k < wanted->n_stack_hash; k++)
            ef_dictionary_want(&publisher->dictionary, version, wanted->stack_hash[k], now);
    }
    if (versions > 0)
        EF_IGNORE(close_batch(publisher, NULL), "tried again when the batch is due");
}

static void
pass_directives(struct ef_publisher *publisher, const Everflame__V1__SyncReply *reply)
{
    if (publisher->directive == NULL)
        return;
    for (size_t i = 0; i < reply->n_directives; i++) {
        const Everflame__V1__Directive *from = reply->directives[i];
        struct ef_directive directive = {.kind = (int)from->kind,
                                         .id = from->id,
                                         .account = from->account,
                                         .worker = from->worker,
                                         .version = from->version};
        publisher->directive(publisher->arg, &directive);
    }
}

/* The next budget from what the last one led to. */
static void
pace(struct ef_publisher *publisher, const struct ef_spool_resend *resend)
{
    uint64_t bytes = publisher->resend_bytes;

    if (resend->again > 0)
        bytes = bytes / 2 > RESEND_BYTES_MIN ? bytes / 2 : RESEND_BYTES_MIN;
    else if (resend->more)
        bytes = bytes * 2 < RESEND_BYTES_MAX ? bytes * 2 : RESEND_BYTES_MAX;
    publisher->resend_bytes = bytes;
}

static void
apply_reply(struct ef_publisher *publisher, const Everflame__V1__SyncReply *reply, ef_mono_ns now)
{
    struct ef_spool_resend resend = {
        .bytes_left = publisher->resend_bytes,
        .batches_left = RESEND_BATCHES_MAX,
        .sent_before.ns = publisher->request_time.ns - IN_FLIGHT_NS,
    };
    int64_t wait_ns = publisher->sync_interval_ns - ef_mono_since(publisher->request_time, now).ns;

    lock(publisher);
    for (size_t i = 0; i < reply->n_epochs; i++) {
        const Everflame__V1__EpochReply *epoch = reply->epochs[i];
        ef_spool_apply(&publisher->spool, epoch->epoch, epoch->acknowledged, epoch->missing_first,
                       epoch->missing_last, epoch->n_missing_first, &resend);
    }
    answer_wanted(publisher, reply, now);
    publisher->answered = true;
    publisher->syncs_answered++;
    pthread_cond_broadcast(&publisher->progress);
    unlock(publisher);
    pace(publisher, &resend);
    if ((resend.more || resend.marked > 0) && wait_ns > RESEND_SYNC_MS * EF_NS_PER_MS)
        wait_ns = RESEND_SYNC_MS * EF_NS_PER_MS;
    publisher->next_sync.ns = now.ns + (wait_ns > 0 ? wait_ns : 0);
    pass_directives(publisher, reply);
}

/* Only the reply to the request that is out counts. */
static bool
decode_reply(struct ef_publisher *publisher, const void *data, size_t len,
             const Everflame__V1__SyncReply **ret)
{
    struct ef_wire_header header;
    const ProtobufCMessage *message;

    if (ef_wire_decode(publisher->reader, EF_WIRE_SYNC_REPLY, data, len, &header, &message, NULL) !=
        EF_OK)
        return false;
    *ret = (const Everflame__V1__SyncReply *)message;
    return header.sequence == publisher->request_number &&
           header.epoch == ef_spool_present(&publisher->spool)->epoch &&
           memcmp(header.publisher, publisher->spool.publisher, sizeof(header.publisher)) == 0;
}

static void
finish_sync(struct ef_publisher *publisher, ef_mono_ns now)
{
    const Everflame__V1__SyncReply *reply = NULL;
    const void *data = NULL;
    size_t len = 0;
    enum ef_link_event event = ef_link_poll(publisher->link, &data, &len);

    if (event == EF_LINK_NOTHING) {
        bool late = ef_mono_since(publisher->request_time, now).ns > UNANSWERED_NS;
        if (!publisher->request_failed && late) {
            publisher->request_failed = true;
            note_failed(publisher);
        }
        return;
    }
    publisher->request_out = false;
    if (event == EF_LINK_REPLY && decode_reply(publisher, data, len, &reply)) {
        apply_reply(publisher, reply, now);
        return;
    }
    note_failed(publisher);
    publisher->next_sync.ns = now.ns + publisher->sync_interval_ns;
}

/* When something is to be done if nobody wakes us. The lock is held. */
static int64_t
deadline_ns(const struct ef_publisher *publisher, ef_mono_ns now)
{
    int64_t at = now.ns + EF_NS_PER_S;
    int64_t batch_ns = publisher->batch.opened.ns + publisher->batch_delay_ns;

    if (!ef_batch_is_empty(&publisher->batch) && batch_ns < at)
        at = batch_ns;
    if (!publisher->request_out && publisher->next_sync.ns < at)
        at = publisher->next_sync.ns;
    return at;
}

static void
wait_for_work(struct ef_publisher *publisher, ef_mono_ns now)
{
    int64_t at = deadline_ns(publisher, now);
    struct timespec until = {.tv_sec = at / EF_NS_PER_S, .tv_nsec = at % EF_NS_PER_S};
    int rc = 0;

    while (!publisher->woken && !publisher->stop && rc != ETIMEDOUT && at > now.ns)
        rc = pthread_cond_timedwait(&publisher->wake, &publisher->lock, &until);
    publisher->woken = false;
}

static void *
run(void *arg)
{
    struct ef_publisher *publisher = arg;

    for (;;) {
        ef_mono_ns now = ef_mono_now();
        bool stop;
        lock(publisher);
        if (publisher->draining > 0 &&
            publisher->next_sync.ns > publisher->request_time.ns + DRAIN_SYNC_MS * EF_NS_PER_MS)
            publisher->next_sync.ns = publisher->request_time.ns + DRAIN_SYNC_MS * EF_NS_PER_MS;
        wait_for_work(publisher, now);
        now = ef_mono_now();
        stop = publisher->stop;
        if (ef_mono_since(publisher->batch.opened, now).ns >= publisher->batch_delay_ns &&
            close_batch(publisher, NULL) == EF_ENOMEM)
            publisher->batch.opened = now; /* not in a hurry when memory is short */
        unlock(publisher);
        if (stop)
            return NULL;
        send_batches(publisher);
        if (publisher->request_out)
            finish_sync(publisher, now);
        else if (now.ns >= publisher->next_sync.ns)
            start_sync(publisher, now);
    }
}

/* ---- drain and stat ---- */

static ef_rc
wait_until_empty(struct ef_publisher *publisher, uint64_t wait_ms, struct ef_err *err)
{
    const struct ef_spool *spool = &publisher->spool;
    int64_t at = wait_ms < (uint64_t)INT64_MAX / 2 / EF_NS_PER_MS
                     ? ef_mono_now().ns + (int64_t)wait_ms * EF_NS_PER_MS
                     : INT64_MAX;
    struct timespec until = {.tv_sec = at / EF_NS_PER_S, .tv_nsec = at % EF_NS_PER_S};
    int rc = 0;

    while (spool->batches_held > 0 || spool->lost_count > 0) {
        if (rc == ETIMEDOUT)
            return ef_err_set(err, EF_ETIMEOUT,
                              "%" PRIu64 " batches (%" PRIu64
                              " bytes) are not acknowledged after %" PRIu64 " ms",
                              spool->batches_held, spool->bytes_held, wait_ms);
        rc = pthread_cond_timedwait(&publisher->progress, &publisher->lock, &until);
    }
    return EF_OK;
}

ef_rc
ef_publisher_drain(struct ef_publisher *publisher, uint64_t wait_ms, struct ef_err *err)
{
    ef_rc rc;

    lock(publisher);
    rc = close_batch(publisher, err);
    if (rc == EF_OK) {
        publisher->draining++;
        publisher->woken = true;
        pthread_cond_signal(&publisher->wake);
        rc = wait_until_empty(publisher, wait_ms, err);
        publisher->draining--;
    }
    unlock(publisher);
    return rc;
}

void
ef_publisher_get_stat(struct ef_publisher *publisher, struct ef_publisher_stat *ret_stat)
{
    const struct ef_spool_epoch *epoch;
    bool up = ef_link_is_up(publisher->link);

    lock(publisher);
    epoch = ef_spool_present(&publisher->spool);
    *ret_stat = (struct ef_publisher_stat){
        .epoch = epoch->epoch,
        .sequence = epoch->last_sequence,
        .fragments_published = epoch->fragments_published,
        .samples_published = epoch->samples_published,
        .fragments_lost = publisher->spool.fragments_lost,
        .samples_lost = publisher->spool.samples_lost,
        .batches_held = publisher->spool.batches_held,
        .bytes_held = publisher->spool.bytes_held,
        .acknowledged = epoch->acknowledged,
        .batches_resent = publisher->batches_resent,
        .syncs_answered = publisher->syncs_answered,
        .syncs_failed = publisher->syncs_failed,
        .dictionary_stacks = publisher->dictionary.stack_count,
        .stacks_over_limit = publisher->dictionary.stacks_over_limit,
        .spool_write_errors = publisher->spool.write_errors,
        .connected = publisher->answered && up,
    };
    unlock(publisher);
}

/* ---- life cycle ---- */

static void
copy_options(struct ef_publisher *publisher, const struct ef_publisher_options *options)
{
    uint64_t bytes = options->batch_bytes_max > 0 ? options->batch_bytes_max : BATCH_BYTES_DEFAULT;

    if (bytes > BATCH_BYTES_MAX)
        bytes = BATCH_BYTES_MAX;
    if (bytes < BATCH_BYTES_MIN)
        bytes = BATCH_BYTES_MIN;
    publisher->batch_bytes_max = (size_t)bytes;
    publisher->batch_fragments_max =
        options->batch_fragments_max > 0 ? options->batch_fragments_max : BATCH_FRAGMENTS_DEFAULT;
    publisher->batch_delay_ns =
        (int64_t)(options->batch_delay_ms > 0 ? options->batch_delay_ms : DELAY_MS_DEFAULT) *
        EF_NS_PER_MS;
    publisher->sync_interval_ns =
        (int64_t)(options->sync_interval_ms > 0 ? options->sync_interval_ms : SYNC_MS_DEFAULT) *
        EF_NS_PER_MS;
    publisher->directive = options->directive;
    publisher->arg = options->arg;
    publisher->resend_bytes = RESEND_BYTES_START;
}

static ef_rc
init_locks(struct ef_publisher *publisher, struct ef_err *err)
{
    pthread_condattr_t attr;
    bool good = pthread_condattr_init(&attr) == 0;

    good = good && pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
           pthread_mutex_init(&publisher->lock, NULL) == 0 &&
           pthread_cond_init(&publisher->wake, &attr) == 0 &&
           pthread_cond_init(&publisher->progress, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return good ? EF_OK : ef_err_set(err, EF_ENOMEM, "no lock for a publisher");
}

/* Our thread takes no signal of the host process. */
static ef_rc
start_thread(struct ef_publisher *publisher, struct ef_err *err)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&publisher->thread, NULL, run, publisher);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return ef_err_set(err, EF_ENOMEM, "cannot start the publisher's thread");
    publisher->thread_runs = true;
    pthread_setname_np(publisher->thread, "ef-publisher");
    return EF_OK;
}

static ef_rc
open_parts(struct ef_publisher *publisher, const struct ef_publisher_options *options,
           struct ef_err *err)
{
    size_t stacks_max =
        options->dictionary_stacks_max > 0 ? options->dictionary_stacks_max : STACKS_DEFAULT;
    const char *name = options->name;
    ef_rc rc;

    /* A name that the collector would refuse must not stop the syncs. */
    if (name == NULL || !ef_name_valid(name, strlen(name), EF_WIRE_NAME_BYTES_MAX))
        name = "";

    ef_batch_init(&publisher->batch);
    ef_targets_init(&publisher->targets);
    ef_dictionary_init(&publisher->dictionary, stacks_max, definition_added, publisher);
    ef_buf_init(&publisher->packed, EF_WIRE_RAW_BYTES_MAX + 65536);
    ef_buf_init(&publisher->request, EF_WIRE_RAW_BYTES_MAX + 65536);
    ef_buf_init(&publisher->sending, EF_WIRE_BATCH_BYTES_MAX);
    publisher->name = strdup(name);
    if (publisher->name == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a publisher");
    rc = ef_wire_keys_open(options->key_file, &publisher->keys, err);
    if (rc == EF_OK)
        rc = ef_wire_reader_open(publisher->keys, &publisher->reader, err);
    if (rc == EF_OK)
        rc = ef_spool_open(&publisher->spool, options->spool_path,
                           options->spool_bytes_max > 0 ? options->spool_bytes_max
                                                        : SPOOL_BYTES_DEFAULT,
                           publisher->keys, err);
    if (rc == EF_OK)
        rc = ef_link_open(options->ingest_url, options->sync_url, publisher->batch_bytes_max, wake,
                          publisher, &publisher->link, err);
    if (rc == EF_OK)
        rc = start_thread(publisher, err);
    return rc;
}

ef_rc
ef_publisher_open(const struct ef_publisher_options *options, struct ef_publisher **ret_publisher,
                  struct ef_err *err)
{
    struct ef_publisher *publisher = calloc(1, sizeof(*publisher));
    ef_rc rc;

    if (publisher == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a publisher");
    rc = init_locks(publisher, err);
    if (rc != EF_OK) {
        free(publisher);
        return rc;
    }
    copy_options(publisher, options);
    rc = open_parts(publisher, options, err);
    if (rc != EF_OK) {
        ef_publisher_free(publisher);
        return rc;
    }
    *ret_publisher = publisher;
    return EF_OK;
}

void
ef_publisher_free(struct ef_publisher *publisher)
{
    if (publisher == NULL)
        return;
    if (publisher->thread_runs) {
        lock(publisher);
        publisher->stop = true;
        pthread_cond_signal(&publisher->wake);
        unlock(publisher);
        pthread_join(publisher->thread, NULL);
        lock(publisher);
        EF_IGNORE(close_batch(publisher, NULL), "there is nobody left to tell");
        unlock(publisher);
    }
    ef_link_free(publisher->link);
    ef_spool_close(&publisher->spool);
    ef_dictionary_fini(&publisher->dictionary);
    ef_batch_fini(&publisher->batch);
    ef_targets_fini(&publisher->targets);
    ef_wire_reader_free(publisher->reader);
    ef_wire_keys_free(publisher->keys);
    ef_buf_fini(&publisher->packed);
    ef_buf_fini(&publisher->request);
    ef_buf_fini(&publisher->sending);
    pthread_cond_destroy(&publisher->progress);
    pthread_cond_destroy(&publisher->wake);
    pthread_mutex_destroy(&publisher->lock);
    free(publisher->hashes);
    free(publisher->name);
    free(publisher);
}
