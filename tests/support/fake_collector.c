/*
 * Decides what the fake collector records and answers. Receiving threads only record; the test
 * thread asserts.
 */
#include "tests/support/ef_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/protocol/reqrep0/rep.h>

#include "proto/base/time.h"
#include "tests/support/fake_collector.h"

#define WAIT_S 20
#define RANGES_MAX 1024

struct ef_fake_inner {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t sub_thread, rep_thread;
    nng_socket sub, rep;
    struct ef_wire_keys *keys;
    struct ef_wire_reader *sub_reader, *rep_reader;
    int ingest_port, sync_port;
    char ingest_url[64], sync_url[64];
};

uint64_t
ef_fake_map(const struct ef_map *map, uint64_t key)
{
    const uint64_t *value = ef_map_get(map, key);

    return value != NULL ? *value : 0;
}

static void
count_in(struct ef_map *map, uint64_t key, uint64_t by)
{
    bool is_new;
    uint64_t *value = ef_map_upsert(map, key, &is_new);

    if (value != NULL)
        *value += by;
}

struct ef_fake_epoch *
ef_fake_epoch(struct ef_fake *fake, uint64_t epoch)
{
    for (size_t i = 0; i < fake->epoch_count; i++) {
        if (fake->epochs[i].epoch == epoch)
            return &fake->epochs[i];
    }
    return NULL;
}

static struct ef_fake_epoch *
epoch_of(struct ef_fake *fake, uint64_t epoch)
{
    struct ef_fake_epoch *found = ef_fake_epoch(fake, epoch);

    if (found == NULL && fake->epoch_count < EF_FAKE_EPOCHS_MAX) {
        found = &fake->epochs[fake->epoch_count++];
        memset(found, 0, sizeof(*found));
        found->epoch = epoch;
        found->seen = calloc(1, EF_FAKE_SEQUENCES_MAX);
    }
    return found;
}

static void
advance(struct ef_fake_epoch *epoch)
{
    while (epoch->contiguous + 1 < EF_FAKE_SEQUENCES_MAX && epoch->seen[epoch->contiguous + 1] != 0)
        epoch->contiguous++;
}

static void
record_definitions(struct ef_fake *fake, const Everflame__V1__Batch *batch)
{
    for (size_t i = 0; i < batch->n_definitions; i++) {
        const Everflame__V1__Definitions *at = batch->definitions[i];
        for (size_t k = 0; k < at->n_function_hash; k++)
            count_in(&fake->function_definitions, at->function_hash[k], 1);
        for (size_t k = 0; k < at->n_stack_hash; k++) {
            bool is_new;
            uint64_t *parent = ef_map_upsert(&fake->stack_parent, at->stack_hash[k], &is_new);
            count_in(&fake->stack_definitions, at->stack_hash[k], 1);
            if (parent != NULL)
                *parent = at->stack_parent[k];
        }
    }
}

static void
record_batch(struct ef_fake *fake, const struct ef_wire_header *header,
             const Everflame__V1__Batch *batch)
{
    struct ef_fake_epoch *epoch = epoch_of(fake, header->epoch);

    if (epoch == NULL || header->sequence == 0 || header->sequence >= EF_FAKE_SEQUENCES_MAX)
        return;
    epoch->arrivals++;
    if (epoch->seen[header->sequence] != 0) {
        epoch->doubles++;
        return;
    }
    if (fake->drop_every > 0 && epoch->arrivals % fake->drop_every == 0)
        return;
    epoch->seen[header->sequence] = 1;
    if (header->sequence < epoch->newest)
        epoch->out_of_order++;
    else
        epoch->newest = header->sequence;
    advance(epoch);
    record_definitions(fake, batch);
    epoch->fragments += batch->n_fragments;
    fake->usages += batch->n_usages;
    fake->batches_without_fragments += batch->n_fragments == 0;
    for (size_t i = 0; i < batch->n_fragments; i++) {
        const Everflame__V1__Fragment *fragment = batch->fragments[i];
        for (size_t k = 0; k < fragment->n_stack; k++) {
            epoch->samples += fragment->count[k];
            count_in(&fake->stack_samples, fragment->stack[k], fragment->count[k]);
            if (ef_map_get(&fake->stack_definitions, fragment->stack[k]) == NULL)
                fake->undefined_first++;
        }
    }
}

static void *
receive_batches(void *arg)
{
    struct ef_fake *fake = arg;
    struct ef_fake_inner *inner = fake->inner;
    nng_msg *message;

    while (nng_recvmsg(inner->sub, &message, 0) == 0) {
        struct ef_wire_header header;
        const ProtobufCMessage *decoded;
        ef_rc rc = ef_wire_decode(inner->sub_reader, EF_WIRE_BATCH, nng_msg_body(message),
                                  nng_msg_len(message), &header, &decoded, NULL);
        pthread_mutex_lock(&inner->lock);
        if (rc == EF_OK)
            record_batch(fake, &header, (const Everflame__V1__Batch *)decoded);
        else
            fake->bad_messages++;
        pthread_cond_broadcast(&inner->changed);
        pthread_mutex_unlock(&inner->lock);
        nng_msg_free(message);
    }
    return NULL;
}

static void
record_state(struct ef_fake *fake, const Everflame__V1__EpochState *state)
{
    struct ef_fake_epoch *epoch = epoch_of(fake, state->epoch);

    if (epoch == NULL)
        return;
    epoch->fragments_published = state->fragments_published;
    epoch->samples_published = state->samples_published;
    epoch->first_said = state->first_sequence;
    epoch->last_said = state->last_sequence;
    for (size_t i = 0; state->lost != NULL && i < state->lost->n_sequence; i++) {
        uint64_t sequence = state->lost->sequence[i];
        if (sequence >= EF_FAKE_SEQUENCES_MAX || epoch->seen[sequence] != 0)
            continue;
        epoch->seen[sequence] = 2;
        epoch->lost_sequences++;
        epoch->lost_fragments += state->lost->fragments[i];
        epoch->lost_samples += state->lost->samples[i];
    }
    advance(epoch);
}

struct epoch_answer {
    Everflame__V1__EpochReply reply;
    uint64_t first[RANGES_MAX], last[RANGES_MAX];
};

static void
answer_epoch(const struct ef_fake *fake, const struct ef_fake_epoch *epoch, uint64_t last_sequence,
             struct epoch_answer *ret)
{
    size_t ranges = 0;

    everflame__v1__epoch_reply__init(&ret->reply);
    ret->reply.epoch = epoch->epoch;
    ret->reply.acknowledged = fake->acks_nothing ? 0 : epoch->contiguous;
    for (uint64_t at = epoch->contiguous + 1;
         at <= last_sequence && at < EF_FAKE_SEQUENCES_MAX && ranges < RANGES_MAX; at++) {
        if (epoch->seen[at] != 0)
            continue;
        if (ranges > 0 && ret->last[ranges - 1] + 1 == at) {
            ret->last[ranges - 1] = at;
        } else {
            ret->first[ranges] = ret->last[ranges] = at;
            ranges++;
        }
    }
    ret->reply.n_missing_first = ret->reply.n_missing_last = ranges;
    ret->reply.missing_first = ret->first;
    ret->reply.missing_last = ret->last;
}

/* Encodes the answer; the lock is held. */
static ef_rc
answer(struct ef_fake *fake, const struct ef_wire_header *asked,
       const Everflame__V1__SyncRequest *request, struct ef_buf *out)
{
    static struct epoch_answer answers[EF_FAKE_EPOCHS_MAX];
    Everflame__V1__EpochReply *epochs[EF_FAKE_EPOCHS_MAX];
    Everflame__V1__SyncReply reply = EVERFLAME__V1__SYNC_REPLY__INIT;
    Everflame__V1__Wanted wanted = EVERFLAME__V1__WANTED__INIT, *wanted_list = &wanted;
    Everflame__V1__Directive directive = EVERFLAME__V1__DIRECTIVE__INIT, *directives = &directive;
    struct ef_wire_header header = *asked;

    for (size_t i = 0; i < request->n_epochs; i++) {
        const struct ef_fake_epoch *epoch = ef_fake_epoch(fake, request->epochs[i]->epoch);
        if (epoch == NULL)
            continue;
        answer_epoch(fake, epoch, request->epochs[i]->last_sequence, &answers[reply.n_epochs]);
        epochs[reply.n_epochs] = &answers[reply.n_epochs].reply;
        reply.n_epochs++;
    }
    reply.epochs = epochs;
    reply.now_ns = ef_wall_now().ns;
    wanted.account = fake->account;
    wanted.worker = fake->worker;
    wanted.version = fake->version;
    wanted.n_stack_hash = fake->wanted_count;
    wanted.stack_hash = fake->wanted;
    reply.n_wanted = fake->wanted_count > 0;
    reply.wanted = &wanted_list;
    directive.kind = (Everflame__V1__DirectiveKind)fake->directive_kind;
    directive.id = "directive-1";
    reply.n_directives = fake->directive_kind != 0;
    reply.directives = &directives;
    fake->directive_kind = 0;
    header.kind = EF_WIRE_SYNC_REPLY;
    if (fake->old_reply_first && fake->requests % 2 == 1) {
        /* A reply to an unknown request that, if believed, would forget everything. */
        header.sequence += 1000;
        for (size_t i = 0; i < reply.n_epochs; i++)
            epochs[i]->acknowledged = UINT64_MAX;
    }
    return ef_wire_encode(fake->inner->keys, &header, &reply.base, out, NULL);
}

static void *
answer_syncs(void *arg)
{
    struct ef_fake *fake = arg;
    struct ef_fake_inner *inner = fake->inner;
    struct ef_buf out;
    nng_msg *message;

    ef_buf_init(&out, 8u << 20);
    while (nng_recvmsg(inner->rep, &message, 0) == 0) {
        struct ef_wire_header header;
        const ProtobufCMessage *decoded;
        ef_rc rc = ef_wire_decode(inner->rep_reader, EF_WIRE_SYNC_REQUEST, nng_msg_body(message),
                                  nng_msg_len(message), &header, &decoded, NULL);
        pthread_mutex_lock(&inner->lock);
        if (rc != EF_OK)
            fake->bad_messages++;
        if (rc == EF_OK) {
            const Everflame__V1__SyncRequest *request = (const Everflame__V1__SyncRequest *)decoded;
            fake->requests++;
            memcpy(fake->publisher, header.publisher, sizeof(fake->publisher));
            fake->targets = request->n_targets;
            snprintf(fake->name, sizeof(fake->name), "%s", request->name);
            for (size_t i = 0; i < request->n_epochs; i++)
                record_state(fake, request->epochs[i]);
            rc = fake->mute ? EF_EBUSY : answer(fake, &header, request, &out);
        }
        pthread_cond_broadcast(&inner->changed);
        pthread_mutex_unlock(&inner->lock);
        nng_msg_free(message);
        message = NULL;
        if (rc == EF_OK && nng_msg_alloc(&message, 0) == 0 &&
            nng_msg_append(message, out.data, out.len) == 0 &&
            nng_sendmsg(inner->rep, message, 0) == 0)
            message = NULL;
        if (message != NULL)
            nng_msg_free(message);
    }
    ef_buf_fini(&out);
    return NULL;
}

static int
listen_on(nng_socket socket, char *url, size_t url_bytes, int *port)
{
    if (*port == 0)
        *port = ef_test_free_port();
    snprintf(url, url_bytes, "tcp://127.0.0.1:%d", *port);
    return nng_listen(socket, url, NULL, 0);
}

struct ef_fake *
ef_fake_open(int ingest_port, int sync_port)
{
    struct ef_fake *fake = calloc(1, sizeof(*fake));
    struct ef_fake_inner *inner = calloc(1, sizeof(*inner));
    pthread_condattr_t attr;
    struct ef_err err = {0};

    fake->inner = inner;
    pthread_mutex_init(&inner->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&inner->changed, &attr);
    ef_map_init(&fake->stack_definitions, 1u << 20);
    ef_map_init(&fake->function_definitions, 1u << 20);
    ef_map_init(&fake->stack_samples, 1u << 20);
    ef_map_init(&fake->stack_parent, 1u << 20);
    inner->ingest_port = ingest_port;
    inner->sync_port = sync_port;
    if (ef_wire_keys_open(NULL, &inner->keys, &err) != EF_OK ||
        ef_wire_reader_open(inner->keys, &inner->sub_reader, &err) != EF_OK ||
        ef_wire_reader_open(inner->keys, &inner->rep_reader, &err) != EF_OK)
        fail_msg("%s", err.msg);
    if (nng_sub0_open(&inner->sub) != 0 || nng_rep0_open(&inner->rep) != 0 ||
        nng_socket_set(inner->sub, NNG_OPT_SUB_SUBSCRIBE, "", 0) != 0 ||
        nng_socket_set_int(inner->sub, NNG_OPT_RECVBUF, 8192) != 0 ||
        listen_on(inner->sub, inner->ingest_url, sizeof(inner->ingest_url), &inner->ingest_port) !=
            0 ||
        listen_on(inner->rep, inner->sync_url, sizeof(inner->sync_url), &inner->sync_port) != 0)
        fail_msg("the fake collector cannot listen");
    pthread_create(&inner->sub_thread, NULL, receive_batches, fake);
    pthread_create(&inner->rep_thread, NULL, answer_syncs, fake);
    return fake;
}

static void *
close_socket(void *arg)
{
    nng_close(*(nng_socket *)arg);
    return NULL;
}

/* nng 1.5.2 sometimes never returns from close (sampler/lib/link.c); then its thread is left. */
static bool
close_within(nng_socket *socket)
{
    struct timespec until;
    pthread_t thread;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_create(&thread, NULL, close_socket, socket);
    if (pthread_timedjoin_np(thread, NULL, &until) == 0)
        return true;
    pthread_detach(thread);
    return false;
}

void
ef_fake_free(struct ef_fake *fake)
{
    struct ef_fake_inner *inner;
    bool closed;

    if (fake == NULL)
        return;
    inner = fake->inner;
    closed = close_within(&inner->sub);
    closed = close_within(&inner->rep) && closed;
    pthread_join(inner->sub_thread, NULL);
    pthread_join(inner->rep_thread, NULL);
    ef_wire_reader_free(inner->sub_reader);
    ef_wire_reader_free(inner->rep_reader);
    ef_wire_keys_free(inner->keys);
    for (size_t i = 0; i < fake->epoch_count; i++)
        free(fake->epochs[i].seen);
    ef_map_fini(&fake->stack_definitions);
    ef_map_fini(&fake->function_definitions);
    ef_map_fini(&fake->stack_samples);
    ef_map_fini(&fake->stack_parent);
    pthread_cond_destroy(&inner->changed);
    pthread_mutex_destroy(&inner->lock);
    if (closed) /* otherwise a thread still looks at its socket */
        free(inner);
    free(fake);
}

const char *
ef_fake_ingest_url(const struct ef_fake *fake)
{
    return fake->inner->ingest_url;
}

const char *
ef_fake_sync_url(const struct ef_fake *fake)
{
    return fake->inner->sync_url;
}

void
ef_fake_ports(const struct ef_fake *fake, int *ret_ingest, int *ret_sync)
{
    *ret_ingest = fake->inner->ingest_port;
    *ret_sync = fake->inner->sync_port;
}

void
ef_fake_lock(struct ef_fake *fake)
{
    pthread_mutex_lock(&fake->inner->lock);
}

void
ef_fake_unlock(struct ef_fake *fake)
{
    pthread_mutex_unlock(&fake->inner->lock);
}

bool
ef_fake_wait(struct ef_fake *fake, bool (*condition)(struct ef_fake *fake, void *arg), void *arg)
{
    struct timespec until;
    bool good;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WAIT_S;
    ef_fake_lock(fake);
    while (!(good = condition(fake, arg)) && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&fake->inner->changed, &fake->inner->lock, &until);
    ef_fake_unlock(fake);
    return good;
}

void
ef_fake_forget(struct ef_fake *fake)
{
    ef_fake_lock(fake);
    for (size_t i = 0; i < fake->epoch_count; i++)
        free(fake->epochs[i].seen);
    fake->epoch_count = 0;
    ef_map_clear(&fake->stack_definitions);
    ef_map_clear(&fake->function_definitions);
    ef_map_clear(&fake->stack_samples);
    ef_map_clear(&fake->stack_parent);
    ef_fake_unlock(fake);
}
