/*
 * Copies of the target list for the next syncs. Not thread-safe: the publisher's lock guards it.
 */
#ifndef SAMPLER_LIB_TARGETS_H
#define SAMPLER_LIB_TARGETS_H

#include "proto/wire/arena.h"
#include "proto/wire/wire.h"
#include "sampler/lib/publisher.h"

#define EF_TARGETS_MAX 1024u
#define EF_TARGET_TEXT_BYTES_MAX 256u /* longer texts for people are cut */

struct ef_targets {
    struct ef_wire_arena arena;
    Everflame__V1__TargetStatus *list[EF_TARGETS_MAX];
    size_t count;
};

void ef_targets_init(struct ef_targets *targets);
void ef_targets_fini(struct ef_targets *targets);
/* Replaces all. What the collector would refuse is left out. */
void ef_targets_set(struct ef_targets *targets, const struct ef_target_status *list, size_t count);

#endif
