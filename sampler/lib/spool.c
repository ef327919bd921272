/*
 * Decides what is held, what the bound forces out, and what is reported as lost. Must not know what
 * a batch means or how it is sent. Runs in whatever thread holds the publisher's lock.
 */
#include "sampler/lib/spool.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/envelope.h"

#define SEGMENT_BYTES_MIN 65536u
#define SEGMENT_BYTES_MAX (8u << 20)
/* A loss file is written anew when it has this many more records than there are entries. */
#define LOSS_FILE_SLACK 32768u

/* ---- losses ---- */

static bool
grow_column(void **column, size_t cap, size_t size)
{
    void *grown = realloc(*column, cap * size);

    if (grown == NULL)
        return false;
    *column = grown;
    return true;
}

static bool
lost_reserve(struct ef_spool_lost *lost)
{
    size_t cap = lost->cap > 0 ? lost->cap * 2 : 64;

    if (lost->head > 0 && lost->head >= lost->count) {
        memmove(lost->sequence, lost->sequence + lost->head, lost->count * sizeof(uint64_t));
        memmove(lost->fragments, lost->fragments + lost->head, lost->count * sizeof(uint32_t));
        memmove(lost->samples, lost->samples + lost->head, lost->count * sizeof(uint64_t));
        lost->head = 0;
    }
    if (lost->head + lost->count < lost->cap)
        return true;
    if (!grow_column((void **)&lost->sequence, cap, sizeof(uint64_t)) ||
        !grow_column((void **)&lost->fragments, cap, sizeof(uint32_t)) ||
        !grow_column((void **)&lost->samples, cap, sizeof(uint64_t)))
        return false;
    lost->cap = cap;
    return true;
}

/* Index (from head) of the first entry at or after the sequence. */
static size_t
lost_find(const struct ef_spool_lost *lost, uint64_t sequence)
{
    size_t low = 0, high = lost->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (lost->sequence[lost->head + middle] < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool
lost_has(const struct ef_spool_lost *lost, uint64_t sequence)
{
    size_t at = lost_find(lost, sequence);

    return at < lost->count && lost->sequence[lost->head + at] == sequence;
}

static uint32_t
sat_add_u32(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

/* Merges the two oldest entries of the oldest epoch that has two. */
static void
merge_oldest(struct ef_spool *spool)
{
    for (size_t i = 0; i < spool->epoch_count; i++) {
        struct ef_spool_lost *lost = &spool->epochs[i].lost;
        size_t at = lost->head;
        if (lost->count < 2)
            continue;
        lost->merged_below = lost->sequence[at + 1];
        lost->fragments[at + 1] = sat_add_u32(lost->fragments[at + 1], lost->fragments[at]);
        lost->samples[at + 1] += lost->samples[at];
        lost->head++;
        lost->count--;
        spool->lost_count--;
        return;
    }
}

/* Adds one loss if it is not there. Out of memory: it is then known from the gap alone. */
static void
add_lost(struct ef_spool *spool, struct ef_spool_epoch *epoch, uint64_t sequence,
         uint32_t fragments, uint64_t samples)
{
    struct ef_spool_lost *lost = &epoch->lost;
    size_t at, rest;

    if (lost_has(lost, sequence) || !lost_reserve(lost))
        return;
    at = lost_find(lost, sequence);
    rest = lost->count - at;
    at += lost->head;
    memmove(lost->sequence + at + 1, lost->sequence + at, rest * sizeof(uint64_t));
    memmove(lost->fragments + at + 1, lost->fragments + at, rest * sizeof(uint32_t));
    memmove(lost->samples + at + 1, lost->samples + at, rest * sizeof(uint64_t));
    lost->sequence[at] = sequence;
    lost->fragments[at] = fragments;
    lost->samples[at] = samples;
    lost->count++;
    if (++spool->lost_count > EF_SPOOL_LOST_MAX)
        merge_oldest(spool);
}

static void
drop_lost(struct ef_spool *spool, struct ef_spool_epoch *epoch, uint64_t acknowledged)
{
    struct ef_spool_lost *lost = &epoch->lost;
    size_t gone = lost_find(lost, acknowledged + 1);

    lost->head += gone;
    lost->count -= gone;
    spool->lost_count -= gone;
}

/* Keeps the loss file from growing without end in a long outage. */
static void
compact_loss_file(struct ef_spool *spool, struct ef_spool_epoch *epoch)
{
    const struct ef_spool_lost *lost = &epoch->lost;
    struct ef_spool_record *records;

    if (lost->file_records <= lost->count + LOSS_FILE_SLACK)
        return;
    records = calloc(lost->count + 1, sizeof(*records));
    if (records == NULL)
        return;
    for (size_t i = 0; i < lost->count; i++)
        records[i] = (struct ef_spool_record){.epoch = epoch->epoch,
                                              .sequence = lost->sequence[lost->head + i],
                                              .fragments = lost->fragments[lost->head + i],
                                              .samples = lost->samples[lost->head + i],
                                              .fragments_published = epoch->fragments_published,
                                              .samples_published = epoch->samples_published};
    if (ef_spool_folder_rewrite_losses(spool->folder, epoch->epoch, records, lost->count, NULL) ==
        EF_OK)
        epoch->lost.file_records = lost->count;
    free(records);
}

/* ---- batches ---- */

uint64_t
ef_spool_first(const struct ef_spool_epoch *epoch)
{
    return epoch->count > 0 ? epoch->batches[epoch->head].sequence : epoch->last_sequence + 1;
}

/* Index (from head) of the first batch at or after the sequence. */
static size_t
batch_find(const struct ef_spool_epoch *epoch, uint64_t sequence)
{
    size_t low = 0, high = epoch->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (epoch->batches[epoch->head + middle].sequence < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t
batch_bytes(const struct ef_spool_batch *batch)
{
    return batch->len + sizeof(*batch);
}

/* Frees the oldest batch of the epoch. */
static void
pop_batch(struct ef_spool *spool, struct ef_spool_epoch *epoch)
{
    struct ef_spool_batch *batch = &epoch->batches[epoch->head];

    spool->bytes_held -= batch_bytes(batch);
    spool->batches_held--;
    if (batch->to_send)
        epoch->to_send_count--;
    if (epoch->to_send_from > 0)
        epoch->to_send_from--;
    free(batch->data);
    epoch->head++;
    epoch->count--;
}

static bool
batch_reserve(struct ef_spool_epoch *epoch)
{
    size_t cap = epoch->cap > 0 ? epoch->cap * 2 : 64;
    struct ef_spool_batch *batches;

    if (epoch->head > 0 && epoch->head >= epoch->count) {
        memmove(epoch->batches, epoch->batches + epoch->head,
                epoch->count * sizeof(*epoch->batches));
        epoch->head = 0;
    }
    if (epoch->head + epoch->count < epoch->cap)
        return true;
    batches = realloc(epoch->batches, cap * sizeof(*batches));
    if (batches == NULL)
        return false;
    epoch->batches = batches;
    epoch->cap = cap;
    return true;
}

static void
force_out_oldest(struct ef_spool *spool)
{
    struct ef_spool_epoch *epoch = spool->epochs;
    struct ef_spool_record record = {0};

    while (epoch->count == 0)
        epoch++;
    record.epoch = epoch->epoch;
    record.sequence = epoch->batches[epoch->head].sequence;
    record.fragments = epoch->batches[epoch->head].fragments;
    record.samples = epoch->batches[epoch->head].samples;
    record.fragments_published = epoch->fragments_published;
    record.samples_published = epoch->samples_published;
    pop_batch(spool, epoch);
    spool->fragments_lost += record.fragments;
    spool->samples_lost += record.samples;
    add_lost(spool, epoch, record.sequence, record.fragments, record.samples);
    if (spool->folder == NULL)
        return;
    if (ef_spool_folder_append_loss(spool->folder, &record, NULL) != EF_OK)
        spool->write_errors++;
    epoch->lost.file_records++;
    compact_loss_file(spool, epoch);
    ef_spool_folder_forget(spool->folder, epoch->epoch, ef_spool_first(epoch), false);
}

static void
keep_bound(struct ef_spool *spool)
{
    while (spool->bytes_held > spool->bytes_max && spool->batches_held > 1)
        force_out_oldest(spool);
}

/* The epoch has room for one more (batch_reserve). Takes data. */
static void
push_batch(struct ef_spool *spool, struct ef_spool_epoch *epoch, const struct ef_spool_batch *batch)
{
    epoch->batches[epoch->head + epoch->count] = *batch;
    if (batch->to_send && epoch->to_send_count++ == 0)
        epoch->to_send_from = epoch->count;
    epoch->count++;
    epoch->last_sequence = batch->sequence;
    spool->bytes_held += batch_bytes(batch);
    spool->batches_held++;
}

ef_rc
ef_spool_add(struct ef_spool *spool, uint8_t *data, size_t len, uint32_t fragments,
             uint64_t samples, struct ef_err *err)
{
    struct ef_spool_epoch *epoch = ef_spool_present(spool);
    struct ef_spool_batch batch = {.sequence = epoch->last_sequence + 1,
                                   .data = data,
                                   .len = len,
                                   .fragments = fragments,
                                   .samples = samples,
                                   .to_send = true};

    if (!batch_reserve(epoch)) {
        free(data);
        return ef_err_set(err, EF_ENOMEM, "no memory to spool a batch");
    }
    epoch->fragments_published += fragments;
    epoch->samples_published += samples;
    if (spool->folder != NULL) {
        struct ef_spool_record record = {.epoch = epoch->epoch,
                                         .sequence = batch.sequence,
                                         .fragments = fragments,
                                         .samples = samples,
                                         .fragments_published = epoch->fragments_published,
                                         .samples_published = epoch->samples_published,
                                         .data = data,
                                         .len = len};
        if (ef_spool_folder_append(spool->folder, &record, NULL) != EF_OK)
            spool->write_errors++;
    }
    push_batch(spool, epoch, &batch);
    keep_bound(spool);
    return EF_OK;
}

const struct ef_spool_batch *
ef_spool_next_to_send(struct ef_spool *spool, ef_mono_ns now)
{
    for (size_t i = 0; i < spool->epoch_count; i++) {
        struct ef_spool_epoch *epoch = &spool->epochs[i];
        while (epoch->to_send_count > 0 && epoch->to_send_from < epoch->count) {
            struct ef_spool_batch *batch = &epoch->batches[epoch->head + epoch->to_send_from];
            epoch->to_send_from++;
            if (!batch->to_send)
                continue;
            batch->to_send = false;
            batch->sent = now;
            epoch->to_send_count--;
            return batch;
        }
    }
    return NULL;
}

/* ---- what the collector says ---- */

/* Reports sequences as lost that the collector lacks and we do not hold. At most the newest 16,384.
 */
static void
report_gone(struct ef_spool *spool, struct ef_spool_epoch *epoch, uint64_t from, uint64_t to)
{
    size_t known;

    if (to > epoch->last_sequence)
        to = epoch->last_sequence;
    if (from <= epoch->lost.merged_below)
        from = epoch->lost.merged_below + 1;
    if (to >= EF_SPOOL_LOST_MAX && from <= to - EF_SPOOL_LOST_MAX)
        from = to - EF_SPOOL_LOST_MAX + 1;
    if (from > to)
        return;
    known = lost_find(&epoch->lost, to + 1) - lost_find(&epoch->lost, from);
    if (known == to - from + 1)
        return;
    for (uint64_t sequence = from; sequence <= to; sequence++)
        add_lost(spool, epoch, sequence, 0, 0);
}

static void
mark_missing(struct ef_spool *spool, struct ef_spool_epoch *epoch, uint64_t first, uint64_t last,
             struct ef_spool_resend *resend)
{
    uint64_t next = first; /* not looked at yet */
    size_t at = batch_find(epoch, first);

    for (; at < epoch->count && epoch->batches[epoch->head + at].sequence <= last; at++) {
        struct ef_spool_batch *batch = &epoch->batches[epoch->head + at];
        if (batch->sequence > next)
            report_gone(spool, epoch, next, batch->sequence - 1);
        next = batch->sequence + 1;
        if (batch->to_send || batch->sent.ns > resend->sent_before.ns)
            continue;
        if (batch->resent)
            resend->again++;
        if (resend->batches_left == 0 || resend->bytes_left < batch->len) {
            resend->more = true;
            resend->batches_left = 0; /* keep the order: nothing younger before this one */
            continue;
        }
        resend->bytes_left -= batch->len;
        resend->batches_left--;
        resend->marked++;
        batch->to_send = batch->resent = true;
        if (epoch->to_send_count++ == 0 || at < epoch->to_send_from)
            epoch->to_send_from = at;
    }
    if (next <= last)
        report_gone(spool, epoch, next, last);
}

static void
free_epoch(struct ef_spool_epoch *epoch)
{
    for (size_t i = 0; i < epoch->count; i++)
        free(epoch->batches[epoch->head + i].data);
    free(epoch->batches);
    free(epoch->lost.sequence);
    free(epoch->lost.fragments);
    free(epoch->lost.samples);
}

static void
remove_epoch(struct ef_spool *spool, size_t index)
{
    if (spool->folder != NULL)
        ef_spool_folder_forget_epoch(spool->folder, spool->epochs[index].epoch);
    spool->lost_count -= spool->epochs[index].lost.count;
    free_epoch(&spool->epochs[index]);
    memmove(spool->epochs + index, spool->epochs + index + 1,
            (spool->epoch_count - index - 1) * sizeof(*spool->epochs));
    spool->epoch_count--;
}

static void
acknowledge(struct ef_spool *spool, struct ef_spool_epoch *epoch, uint64_t acknowledged)
{
    if (acknowledged > epoch->last_sequence)
        acknowledged = epoch->last_sequence;
    while (epoch->count > 0 && epoch->batches[epoch->head].sequence <= acknowledged)
        pop_batch(spool, epoch);
    drop_lost(spool, epoch, acknowledged);
    epoch->acknowledged = acknowledged;
    if (spool->folder == NULL)
        return;
    ef_spool_folder_forget(spool->folder, epoch->epoch, ef_spool_first(epoch), false);
    if (epoch->lost.count == 0 && epoch->lost.file_records > 0 &&
        ef_spool_folder_rewrite_losses(spool->folder, epoch->epoch, NULL, 0, NULL) == EF_OK)
        epoch->lost.file_records = 0;
}

void
ef_spool_apply(struct ef_spool *spool, uint64_t epoch_number, uint64_t acknowledged,
               const uint64_t *missing_first, const uint64_t *missing_last, size_t missing_count,
               struct ef_spool_resend *resend)
{
    struct ef_spool_epoch *epoch = NULL;
    size_t index = 0;
    uint64_t first;

    while (index < spool->epoch_count && spool->epochs[index].epoch != epoch_number)
        index++;
    if (index == spool->epoch_count)
        return;
    epoch = &spool->epochs[index];
    acknowledge(spool, epoch, acknowledged);
    /* A collector that lost its state acknowledges less than before: what we dropped is gone. */
    first = ef_spool_first(epoch);
    if (first > 1)
        report_gone(spool, epoch, epoch->acknowledged + 1, first - 1);
    for (size_t i = 0; i < missing_count; i++) {
        uint64_t last = missing_last[i];
        if (last > epoch->last_sequence)
            last = epoch->last_sequence;
        if (missing_first[i] <= last)
            mark_missing(spool, epoch, missing_first[i], last, resend);
    }
    if (epoch != ef_spool_present(spool) && epoch->count == 0 && epoch->lost.count == 0)
        remove_epoch(spool, index);
}

/* ---- life cycle ---- */

static struct ef_spool_epoch *
push_epoch(struct ef_spool *spool, uint64_t number)
{
    if (spool->epoch_count == spool->epoch_cap) {
        size_t cap = spool->epoch_cap > 0 ? spool->epoch_cap * 2 : 4;
        struct ef_spool_epoch *epochs = realloc(spool->epochs, cap * sizeof(*epochs));
        if (epochs == NULL)
            return NULL;
        spool->epochs = epochs;
        spool->epoch_cap = cap;
    }
    spool->epochs[spool->epoch_count] = (struct ef_spool_epoch){.epoch = number};
    return &spool->epochs[spool->epoch_count++];
}

/* While loading, last_sequence is what was read or is known to be gone so far. */
static ef_rc
load_first(void *arg, const struct ef_spool_record *record, struct ef_err *err)
{
    struct ef_spool_epoch *epoch = push_epoch(arg, record->epoch);

    if (epoch == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory to load the spool");
    if (record->sequence > 0)
        epoch->last_sequence = epoch->acknowledged = record->sequence - 1;
    return EF_OK;
}

static void
note_published(struct ef_spool_epoch *epoch, const struct ef_spool_record *record)
{
    if (record->fragments_published > epoch->fragments_published)
        epoch->fragments_published = record->fragments_published;
    if (record->samples_published > epoch->samples_published)
        epoch->samples_published = record->samples_published;
}

static ef_rc
load_loss(void *arg, const struct ef_spool_record *record, struct ef_err *err)
{
    struct ef_spool *spool = arg;
    struct ef_spool_epoch *epoch = ef_spool_present(spool);

    (void)err;
    spool->fragments_lost += record->fragments;
    spool->samples_lost += record->samples;
    epoch->lost.file_records++;
    if (record->sequence > epoch->last_sequence)
        epoch->last_sequence = record->sequence;
    note_published(epoch, record);
    add_lost(spool, epoch, record->sequence, record->fragments, record->samples);
    return EF_OK;
}

/* A record that its own wire header contradicts was not written by us: a gap. */
static bool
is_ours(const struct ef_spool *spool, const struct ef_spool_record *record)
{
    struct ef_wire_header header;

    return ef_wire_peek(record->data, record->len, &header, NULL) == EF_OK &&
           header.kind == EF_WIRE_BATCH && header.epoch == record->epoch &&
           header.sequence == record->sequence &&
           memcmp(header.publisher, spool->publisher, sizeof(header.publisher)) == 0;
}

static ef_rc
load_batch(void *arg, const struct ef_spool_record *record, struct ef_err *err)
{
    struct ef_spool *spool = arg;
    struct ef_spool_epoch *epoch = ef_spool_present(spool);
    uint64_t last = epoch->last_sequence; /* a loss may be younger than this batch */
    struct ef_spool_batch batch = {.sequence = record->sequence,
                                   .len = record->len,
                                   .fragments = record->fragments,
                                   .samples = record->samples};

    if (!is_ours(spool, record) || lost_has(&epoch->lost, record->sequence))
        return EF_OK; /* forced out before, its segment still held others */
    batch.data = malloc(record->len);
    if (batch.data == NULL || !batch_reserve(epoch)) {
        free(batch.data);
        return ef_err_set(err, EF_ENOMEM, "no memory to load the spool");
    }
    memcpy(batch.data, record->data, record->len);
    if (ef_wire_sign_again(spool->keys, batch.data, batch.len, NULL) != EF_OK) {
        free(batch.data);
        return EF_OK;
    }
    note_published(epoch, record);
    push_batch(spool, epoch, &batch);
    if (epoch->last_sequence < last)
        epoch->last_sequence = last;
    keep_bound(spool);
    return EF_OK;
}

/* Sequences that are neither held nor known as lost: damage, or a disk that was full. */
static void
report_holes(struct ef_spool *spool, struct ef_spool_epoch *epoch)
{
    uint64_t next = epoch->acknowledged + 1;

    for (size_t i = 0; i < epoch->count; i++) {
        uint64_t sequence = epoch->batches[epoch->head + i].sequence;
        if (sequence > next)
            report_gone(spool, epoch, next, sequence - 1);
        next = sequence + 1;
    }
    if (next <= epoch->last_sequence)
        report_gone(spool, epoch, next, epoch->last_sequence);
}

static uint64_t
clamp(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static ef_rc
load_folder(struct ef_spool *spool, const char *path, struct ef_err *err)
{
    uint64_t segment_bytes = clamp(spool->bytes_max / 8, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    ef_rc rc = ef_spool_folder_open(path, segment_bytes, &spool->folder, err);

    if (rc != EF_OK)
        return rc;
    memcpy(spool->publisher, ef_spool_folder_publisher(spool->folder), sizeof(spool->publisher));
    rc = ef_spool_folder_load(spool->folder, EF_SPOOL_EPOCHS_MAX, load_first, load_batch, load_loss,
                              spool, err);
    if (rc != EF_OK)
        return rc;
    for (size_t i = spool->epoch_count; i > 0; i--) {
        struct ef_spool_epoch *epoch = &spool->epochs[i - 1];
        report_holes(spool, epoch);
        if (epoch->count == 0 && epoch->lost.count == 0)
            remove_epoch(spool, i - 1);
    }
    return EF_OK;
}

ef_rc
ef_spool_open(struct ef_spool *spool, const char *path, uint64_t bytes_max,
              const struct ef_wire_keys *keys, struct ef_err *err)
{
    uint64_t epoch = (uint64_t)ef_wall_now().ns;
    ef_rc rc = EF_OK;

    *spool = (struct ef_spool){.bytes_max = bytes_max, .keys = keys};
    if (path != NULL && path[0] != 0)
        rc = load_folder(spool, path, err);
    else
        rc = ef_spool_new_publisher(spool->publisher, err);
    /* The wall clock may have been set back since the last life. */
    if (spool->folder != NULL && epoch <= ef_spool_folder_newest_epoch(spool->folder))
        epoch = ef_spool_folder_newest_epoch(spool->folder) + 1;
    if (rc == EF_OK && push_epoch(spool, epoch) == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "no memory for a spool");
    if (rc != EF_OK) {
        ef_spool_folder_free(spool->folder); /* what was not loaded must not count as empty */
        spool->folder = NULL;
        ef_spool_close(spool);
    }
    return rc;
}

void
ef_spool_close(struct ef_spool *spool)
{
    for (size_t i = 0; i < spool->epoch_count; i++) {
        struct ef_spool_epoch *epoch = &spool->epochs[i];
        if (spool->folder != NULL && epoch->count == 0 && epoch->lost.count == 0)
            ef_spool_folder_forget_epoch(spool->folder, epoch->epoch);
        else if (spool->folder != NULL)
            ef_spool_folder_forget(spool->folder, epoch->epoch, ef_spool_first(epoch), true);
        free_epoch(epoch);
    }
    ef_spool_folder_free(spool->folder);
    free(spool->epochs);
    *spool = (struct ef_spool){0};
}
