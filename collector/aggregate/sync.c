/*
 * Decides what a publisher is told: what is on disk, what is missing, which definitions are wanted,
 * what to do. Takes what it says about losses into account first.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/limit.h"
#include "proto/base/metric.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANGES_MAX 256u              /* of one reply; the rest is told with the next */
#define WANTED_MAX 4096u             /* stacks of one reply */
#define TARGETS_BYTES_MAX (1u << 20) /* of one publisher; it names at most 1024 */
#define SETTLE_NS                                                                                  \
    (INT64_C(900) * EF_NS_PER_MS) /* a batch reported this long ago has arrived, or is lost */
#define COLLECT_LIFE_NS (INT64_C(15) * EF_NS_PER_S) /* each publisher syncs every second */
#define COLLECT_SAME_NS EF_NS_PER_S

/* ---- memory of one reply ---- */

struct piece {
    struct piece *next;
    max_align_t data[];
};
struct ef_sync_arena {
    struct piece *pieces;
};

struct ef_sync_arena *
ef_sync_arena_open(void)
{
    return calloc(1, sizeof(struct ef_sync_arena));
}

void
ef_sync_arena_free(struct ef_sync_arena *arena)
{
    while (arena != NULL && arena->pieces != NULL) {
        struct piece *next = arena->pieces->next;
        free(arena->pieces);
        arena->pieces = next;
    }
    free(arena);
}

static void *
take(struct ef_sync_arena *arena, size_t count, size_t item_bytes)
{
    size_t bytes;
    struct piece *piece;

    if (!ef_mul_size(count, item_bytes, &bytes) || !ef_add_size(bytes, sizeof(*piece), &bytes))
        return NULL;
    piece = calloc(1, bytes);
    if (piece == NULL)
        return NULL;
    piece->next = arena->pieces;
    arena->pieces = piece;
    return piece->data;
}

static char *
take_text(struct ef_sync_arena *arena, const char *text)
{
    char *copy = take(arena, strlen(text) + 1, 1);

    return copy == NULL ? NULL : strcpy(copy, text);
}

/* ---- losses ---- */

static bool
is_parked(const struct ef_aggregate *aggregate, const struct ef_epoch *epoch, uint64_t sequence)
{
    return ef_delivery_is_parked(aggregate, epoch, sequence);
}

/*
 * Everything below `sequence` that is neither applied nor parked is gone: the publisher no longer
 * holds it and does not report it as lost, so it was acknowledged before (by a collector whose disk
 * is not ours). What is parked stays: it will be applied, or told as unknown stacks.
 */
static void
advance_to(const struct ef_aggregate *aggregate, struct ef_epoch *epoch, uint64_t sequence)
{
    uint64_t limit = sequence;

    if (epoch->parked_count > 0) {
        for (const struct ef_parked *p = aggregate->delivery.parked; p != NULL; p = p->next) {
            if (p->epoch == epoch && p->sequence <= limit)
                limit = p->sequence - 1;
        }
    }
    ef_epoch_advance(epoch, limit);
}

/* A lost batch counts once, as if applied, and not at all when it did arrive. */
static void
take_lost(struct ef_aggregate *aggregate, struct ef_epoch *epoch,
          const Everflame__V1__EpochState *state)
{
    const Everflame__V1__Lost *lost = state->lost;

    for (size_t i = 0; lost != NULL && i < lost->n_sequence; i++) {
        uint64_t sequence = lost->sequence[i];
        if (sequence == 0 || i >= lost->n_fragments || i >= lost->n_samples)
            continue;
        if (sequence <= state->first_sequence)
            advance_to(aggregate, epoch, sequence - 1);
        if (ef_epoch_has(epoch, sequence) || is_parked(aggregate, epoch, sequence) ||
            !ef_epoch_can_mark(aggregate, epoch, sequence))
            continue;
        epoch->fragments_lost = ef_sat_add_u64(epoch->fragments_lost, lost->fragments[i]);
        epoch->samples_lost = ef_sat_add_u64(epoch->samples_lost, lost->samples[i]);
        ef_epoch_mark(epoch, sequence);
    }
    if (state->first_sequence > 0)
        advance_to(aggregate, epoch, state->first_sequence - 1);
}

/* ---- missing ranges ---- */

struct ranges {
    uint64_t *first, *last;
    size_t count;
};

static void
add_range(struct ranges *ranges, uint64_t first, uint64_t last)
{
    if (first > last || ranges->count >= RANGES_MAX)
        return;
    ranges->first[ranges->count] = first;
    ranges->last[ranges->count++] = last;
}

static int
compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Sequences received above the contiguous one, ascending: applied and parked. NULL: no memory. */
static uint64_t *
received_above(const struct ef_aggregate *aggregate, const struct ef_epoch *epoch,
               struct ef_sync_arena *arena, size_t *ret_count)
{
    uint64_t *list = take(arena, (size_t)epoch->above_count + epoch->parked_count + 1, 8);
    size_t count = epoch->above_count;

    if (list == NULL)
        return NULL;
    if (count > 0)
        memcpy(list, epoch->above, count * sizeof(*list));
    if (epoch->parked_count > 0) {
        for (const struct ef_parked *p = aggregate->delivery.parked; p != NULL; p = p->next) {
            if (p->epoch == epoch)
                list[count++] = p->sequence;
        }
        qsort(list, count, sizeof(*list), compare_u64);
    }
    *ret_count = count;
    return list;
}

/* Batches just published may be under way: only what an earlier sync named, or what is followed by
 * a batch that has arrived, can be missing. */
static void
settle(struct ef_epoch *epoch, uint64_t last_sequence, int64_t now_ns)
{
    if (epoch->reported_ns != 0 && now_ns - epoch->reported_ns < SETTLE_NS)
        return;
    epoch->last_settled = epoch->last_reported;
    epoch->last_reported = last_sequence;
    epoch->reported_ns = now_ns;
}

static bool
find_missing(const struct ef_aggregate *aggregate, const struct ef_epoch *epoch,
             const Everflame__V1__EpochState *state, struct ef_sync_arena *arena,
             struct ranges *ranges)
{
    size_t count = 0;
    uint64_t *received = received_above(aggregate, epoch, arena, &count);
    uint64_t next = epoch->contiguous + 1, until = epoch->last_settled;

    if (received == NULL)
        return false;
    if (count > 0 && received[count - 1] > until)
        until = received[count - 1];
    if (until > state->last_sequence)
        until = state->last_sequence;
    if (next < state->first_sequence)
        next = state->first_sequence;
    for (size_t i = 0; i < count && received[i] <= until; i++) {
        if (received[i] < next)
            continue;
        add_range(ranges, next, received[i] - 1);
        next = received[i] + 1;
    }
    add_range(ranges, next, until);
    return true;
}

/* ---- one epoch ---- */

static void
take_state(struct ef_aggregate *aggregate, struct ef_epoch *epoch,
           const Everflame__V1__EpochState *state, int64_t now_ns)
{
    bool was_dirty = epoch->dirty;

    epoch->dirty = false;
    epoch->fragments_published = state->fragments_published;
    epoch->samples_published = state->samples_published;
    take_lost(aggregate, epoch, state);
    if (epoch->dirty)
        epoch->updated_ns = now_ns;
    epoch->dirty = epoch->dirty || was_dirty;
    settle(epoch, state->last_sequence, now_ns);
}

static Everflame__V1__EpochReply *
reply_epoch(struct ef_aggregate *aggregate, struct ef_epoch *epoch,
            const Everflame__V1__EpochState *state, struct ef_sync_arena *arena)
{
    Everflame__V1__EpochReply *reply = take(arena, 1, sizeof(*reply));
    struct ranges ranges = {take(arena, RANGES_MAX, 8), take(arena, RANGES_MAX, 8), 0};

    if (reply == NULL || ranges.first == NULL || ranges.last == NULL)
        return NULL;
    everflame__v1__epoch_reply__init(reply);
    reply->epoch = epoch->epoch;
    reply->acknowledged = epoch->durable;
    /* With full memory it could not be taken anyway. */
    if (!ef_agg_full(aggregate, 0) && !find_missing(aggregate, epoch, state, arena, &ranges))
        return NULL;
    reply->missing_first = ranges.first;
    reply->missing_last = ranges.last;
    reply->n_missing_first = reply->n_missing_last = ranges.count;
    return reply;
}

/* EF_ENOTFOUND: the epoch is to be looked for in the store. *ret_reply NULL: nothing to say. */
static ef_rc
sync_epoch(struct ef_aggregate *aggregate, const uint8_t publisher[16],
           const Everflame__V1__EpochState *state, bool recalled, int64_t now_ns,
           struct ef_sync_arena *arena, Everflame__V1__EpochReply **ret_reply, struct ef_err *err)
{
    struct ef_epoch *epoch = NULL;
    ef_rc rc;

    *ret_reply = NULL;
    if (state->last_sequence == 0)
        return EF_OK; /* nothing published yet */
    rc = ef_delivery_epoch(aggregate, publisher, state->epoch, recalled, now_ns, &epoch, err);
    if (rc == EF_EBUSY)
        return EF_OK; /* no room: it keeps what it has, and asks again */
    if (rc != EF_OK)
        return rc;
    take_state(aggregate, epoch, state, now_ns);
    *ret_reply = reply_epoch(aggregate, epoch, state, arena);
    return *ret_reply != NULL ? EF_OK : ef_err_set(err, EF_ENOMEM, "no memory for a reply");
}

static ef_rc
sync_epochs(struct ef_aggregate *aggregate, const uint8_t publisher[16],
            const Everflame__V1__SyncRequest *request, int64_t now_ns, struct ef_sync_arena *arena,
            Everflame__V1__SyncReply *reply, struct ef_err *err)
{
    reply->epochs = take(arena, request->n_epochs + 1, sizeof(*reply->epochs));
    if (reply->epochs == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a reply");
    for (size_t i = 0; i < request->n_epochs; i++) {
        Everflame__V1__EpochReply *epoch = NULL;
        ef_rc rc = EF_ENOTFOUND;
        for (bool recalled = false; rc == EF_ENOTFOUND; recalled = true) {
            if (recalled)
                rc = ef_delivery_recall(aggregate, publisher, request->epochs[i]->epoch, now_ns,
                                        err);
            if (recalled && rc != EF_OK)
                break;
            pthread_mutex_lock(&aggregate->lock);
            rc = sync_epoch(aggregate, publisher, request->epochs[i], recalled, now_ns, arena,
                            &epoch, err);
            pthread_mutex_unlock(&aggregate->lock);
        }
        if (rc != EF_OK)
            return rc;
        if (epoch != NULL)
            reply->epochs[reply->n_epochs++] = epoch;
    }
    return EF_OK;
}

/* ---- wanted definitions ---- */

static Everflame__V1__Wanted *
new_wanted(const struct ef_version *version, struct ef_sync_arena *arena)
{
    Everflame__V1__Wanted *wanted = take(arena, 1, sizeof(*wanted));

    if (wanted == NULL)
        return NULL;
    everflame__v1__wanted__init(wanted);
    wanted->account = take_text(arena, version->account);
    wanted->worker = take_text(arena, version->worker);
    wanted->version = take_text(arena, version->version);
    wanted->stack_hash = take(arena, WANTED_MAX, sizeof(uint64_t));
    if (wanted->account == NULL || wanted->worker == NULL || wanted->version == NULL ||
        wanted->stack_hash == NULL)
        return NULL;
    return wanted;
}

struct want {
    struct ef_aggregate *aggregate;
    struct ef_sync_arena *arena;
    Everflame__V1__SyncReply *reply;
    struct ef_map seen;       /* version and hash: each once */
    struct ef_map version_at; /* version id -> index of reply->wanted + 1 */
};

static bool
want_one(struct want *want, const struct ef_missing *missing)
{
    struct ef_version *version = want->aggregate->catalogue.versions[missing->version_id - 1];
    Everflame__V1__SyncReply *reply = want->reply;
    bool is_new;
    uint64_t *index;

    if (version->stacks_loaded && ef_ids_find(&version->stacks, missing->hash) != 0)
        return true;
    if (ef_map_upsert(&want->seen,
                      missing->hash ^ missing->version_id * UINT64_C(0x9e3779b97f4a7c15),
                      &is_new) == NULL)
        return false;
    if (!is_new)
        return true;
    index = ef_map_upsert(&want->version_at, missing->version_id, &is_new);
    if (index == NULL)
        return false;
    if (is_new) {
        reply->wanted[reply->n_wanted] = new_wanted(version, want->arena);
        if (reply->wanted[reply->n_wanted] == NULL)
            return false;
        *index = ++reply->n_wanted;
    }
    reply->wanted[*index - 1]->stack_hash[reply->wanted[*index - 1]->n_stack_hash++] =
        missing->hash;
    return true;
}

#define WANTED_VERSIONS_MAX 64u /* versions of one reply; each may hold WANTED_MAX hashes */

static void
fill_wanted(struct ef_aggregate *aggregate, const struct ef_publisher_view *publisher,
            struct ef_sync_arena *arena, Everflame__V1__SyncReply *reply)
{
    struct want want = {.aggregate = aggregate, .arena = arena, .reply = reply};
    bool room = true;

    ef_map_init(&want.seen, WANTED_MAX);
    ef_map_init(&want.version_at, WANTED_VERSIONS_MAX);
    reply->wanted = take(arena, WANTED_VERSIONS_MAX, sizeof(*reply->wanted));
    room = reply->wanted != NULL;
    for (const struct ef_parked *p = aggregate->delivery.parked; p != NULL && room; p = p->next) {
        for (uint32_t i = p->missing_at;
             p->epoch->publisher == publisher && i < p->missing_count && room; i++)
            room = want_one(&want, &p->missing[i]);
    }
    ef_map_fini(&want.seen);
    ef_map_fini(&want.version_at);
}

/* ---- directives ---- */

static void
drop_old_collects(struct ef_aggregate *aggregate, int64_t now_ns)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < aggregate->collect_count; i++) {
        int64_t age_ns = now_ns - aggregate->collects[i].created_ns;
        if (age_ns >= 0 && age_ns < COLLECT_LIFE_NS)
            aggregate->collects[kept++] = aggregate->collects[i];
    }
    aggregate->collect_count = kept;
}

ef_rc
ef_aggregate_request_collect(struct ef_aggregate *aggregate, const char *account,
                             const char *worker, const char *version, int64_t now_ns,
                             struct ef_err *err)
{
    struct ef_collect *collect;
    ef_rc rc = EF_OK;

    if (strlen(account) > EF_STORE_NAME_MAX || strlen(worker) > EF_STORE_NAME_MAX ||
        strlen(version) > EF_STORE_NAME_MAX)
        return ef_err_set(err, EF_EINVAL, "a name is longer than %d bytes", EF_STORE_NAME_MAX);
    pthread_mutex_lock(&aggregate->lock);
    drop_old_collects(aggregate, now_ns);
    for (uint32_t i = 0; i < aggregate->collect_count; i++) {
        collect = &aggregate->collects[i];
        if (now_ns - collect->created_ns < COLLECT_SAME_NS &&
            strcmp(collect->account, account) == 0 && strcmp(collect->worker, worker) == 0 &&
            strcmp(collect->version, version) == 0)
            goto out; /* asked for a moment ago */
    }
    if (aggregate->collect_count >= EF_DIRECTIVES_MAX) {
        rc = ef_err_set(err, EF_ERATE, "%u collections are asked for already", EF_DIRECTIVES_MAX);
        goto out;
    }
    collect = &aggregate->collects[aggregate->collect_count++];
    *collect = (struct ef_collect){.created_ns = now_ns};
    snprintf(collect->id, sizeof(collect->id), "%" PRIx64 "-%" PRIu64, (uint64_t)now_ns,
             ++aggregate->collect_serial);
    strcpy(collect->account, account);
    strcpy(collect->worker, worker);
    strcpy(collect->version, version);
out:
    pthread_mutex_unlock(&aggregate->lock);
    return rc;
}

static void
fill_directives(struct ef_aggregate *aggregate, int64_t now_ns, struct ef_sync_arena *arena,
                Everflame__V1__SyncReply *reply)
{
    drop_old_collects(aggregate, now_ns);
    reply->directives = take(arena, EF_DIRECTIVES_MAX, sizeof(*reply->directives));
    for (uint32_t i = 0; reply->directives != NULL && i < aggregate->collect_count; i++) {
        const struct ef_collect *collect = &aggregate->collects[i];
        Everflame__V1__Directive *directive = take(arena, 1, sizeof(*directive));
        if (directive == NULL)
            return;
        everflame__v1__directive__init(directive);
        directive->kind = EVERFLAME__V1__DIRECTIVE_KIND__COLLECT;
        directive->id = take_text(arena, collect->id);
        directive->account = take_text(arena, collect->account);
        directive->worker = take_text(arena, collect->worker);
        directive->version = take_text(arena, collect->version);
        if (directive->id == NULL || directive->account == NULL || directive->worker == NULL ||
            directive->version == NULL)
            return;
        reply->directives[reply->n_directives++] = directive;
    }
}

/* ---- what is shown of a publisher ---- */

/* The targets alone, packed; NULL when there are none, too many, or no memory. */
static uint8_t *
pack_targets(const Everflame__V1__SyncRequest *request, size_t *ret_len)
{
    Everflame__V1__SyncRequest targets = EVERFLAME__V1__SYNC_REQUEST__INIT;
    uint8_t *packed;

    *ret_len = 0;
    targets.n_targets = request->n_targets;
    targets.targets = request->targets;
    if (request->n_targets == 0 ||
        everflame__v1__sync_request__get_packed_size(&targets) > TARGETS_BYTES_MAX)
        return NULL;
    packed = malloc(everflame__v1__sync_request__get_packed_size(&targets));
    if (packed != NULL)
        *ret_len = everflame__v1__sync_request__pack(&targets, packed);
    return packed;
}

/* Takes the packed targets. */
static struct ef_publisher_view *
show_publisher(struct ef_aggregate *aggregate, const uint8_t id[16],
               const Everflame__V1__SyncRequest *request, uint8_t *targets, size_t targets_len,
               int64_t now_ns)
{
    struct ef_publisher_view *publisher = ef_delivery_publisher(aggregate, id, now_ns);

    if (publisher == NULL || ef_agg_full(aggregate, targets_len)) {
        free(targets);
        targets = NULL;
        targets_len = 0;
    }
    if (publisher == NULL)
        return NULL;
    snprintf(publisher->name, sizeof(publisher->name), "%s", request->name);
    publisher->seen_ns = publisher->synced_ns = now_ns;
    publisher->spool_bytes = request->spool_bytes;
    publisher->spool_bytes_max = request->spool_bytes_max;
    aggregate->delivery_bytes += targets_len;
    aggregate->delivery_bytes -= publisher->targets_len;
    free(publisher->targets);
    publisher->targets = targets;
    publisher->targets_len = targets_len;
    return publisher;
}

ef_rc
ef_aggregate_sync(struct ef_aggregate *aggregate, const uint8_t publisher[16],
                  const Everflame__V1__SyncRequest *request, int64_t now_ns,
                  struct ef_sync_arena *arena, Everflame__V1__SyncReply *ret_reply,
                  struct ef_err *err)
{
    Everflame__V1__SyncReply reply = EVERFLAME__V1__SYNC_REPLY__INIT;
    struct ef_publisher_view *view;
    size_t targets_len;
    uint8_t *targets = pack_targets(request, &targets_len);
    ef_rc rc;

    reply.now_ns = now_ns;
    ef_apply_parked(aggregate, now_ns);
    pthread_mutex_lock(&aggregate->lock);
    (void)show_publisher(aggregate, publisher, request, targets, targets_len, now_ns);
    pthread_mutex_unlock(&aggregate->lock);
    rc = sync_epochs(aggregate, publisher, request, now_ns, arena, &reply, err);
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&aggregate->lock);
    /* Looked up again: it may have been forgotten while we were without the lock. */
    view = ef_delivery_publisher(aggregate, publisher, now_ns);
    if (view != NULL)
        fill_wanted(aggregate, view, arena, &reply);
    fill_directives(aggregate, now_ns, arena, &reply);
    pthread_mutex_unlock(&aggregate->lock);
    *ret_reply = reply;
    return EF_OK;
}
