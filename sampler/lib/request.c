/*
 * Decides what a sync request says. Runs in the publisher's thread, with its lock held, because the
 * message borrows the columns of the spool.
 */
#include "sampler/lib/request.h"

#include <stdlib.h>
#include <string.h>

struct epoch_message {
    Everflame__V1__EpochState state;
    Everflame__V1__Lost lost;
};

static void
fill_epoch(const struct ef_spool_epoch *epoch, struct epoch_message *ret)
{
    const struct ef_spool_lost *lost = &epoch->lost;

    everflame__v1__epoch_state__init(&ret->state);
    ret->state.epoch = epoch->epoch;
    ret->state.first_sequence = ef_spool_first(epoch);
    ret->state.last_sequence = epoch->last_sequence;
    ret->state.fragments_published = epoch->fragments_published;
    ret->state.samples_published = epoch->samples_published;
    if (lost->count == 0)
        return;
    everflame__v1__lost__init(&ret->lost);
    ret->lost.n_sequence = ret->lost.n_fragments = ret->lost.n_samples = lost->count;
    ret->lost.sequence = lost->sequence + lost->head;
    ret->lost.fragments = lost->fragments + lost->head;
    ret->lost.samples = lost->samples + lost->head;
    ret->state.lost = &ret->lost;
}

ef_rc
ef_request_encode(const struct ef_spool *spool, struct ef_targets *targets, const char *name,
                  uint64_t number, struct ef_buf *out, struct ef_err *err)
{
    struct epoch_message *messages = calloc(spool->epoch_count, sizeof(*messages));
    Everflame__V1__EpochState **states =
        calloc(spool->epoch_count, sizeof(Everflame__V1__EpochState *));
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    struct ef_wire_header header = {.kind = EF_WIRE_SYNC_REQUEST, .sequence = number};
    ef_rc rc = EF_OK;

    if (messages == NULL || states == NULL) {
        rc = ef_err_set(err, EF_ENOMEM, "no memory for a sync");
        goto out;
    }
    for (size_t i = 0; i < spool->epoch_count; i++) {
        fill_epoch(&spool->epochs[i], &messages[i]);
        states[i] = &messages[i].state;
    }
    memcpy(header.publisher, spool->publisher, sizeof(header.publisher));
    header.epoch = ef_spool_present(spool)->epoch;
    request.now_ns = ef_wall_now().ns > 0 ? ef_wall_now().ns : 0;
    request.name = (char *)(uintptr_t)name;
    request.n_epochs = spool->epoch_count;
    request.epochs = states;
    request.spool_bytes = spool->bytes_held;
    request.spool_bytes_max = spool->bytes_max;
    request.n_targets = targets->count;
    request.targets = targets->list;
    for (;;) {
        rc = ef_wire_encode(spool->keys, &header, &request.base, out, err);
        if (rc != EF_ELIMIT || request.n_targets == 0)
            break;
        request.n_targets /= 2;
    }
out:
    free(messages);
    free(states);
    return rc;
}
