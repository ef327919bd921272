/*
 * Heap profiles to samples: a snapshot as it is, or what a cumulative profile grew by.
 *
 * V8's allocation profile counts up from its start. A stack's published sum is the highest value it
 * ever showed in this run, so nothing is negative and nothing counts twice: +100, -150, +200 nets
 * what the counter says. A total that shrinks means that counting began anew (process restart,
 * sampling restarted): then the values themselves are the growth. Stacks are told apart by content
 * hash, not by V8's node ids, which a new start renumbers. Not thread-safe.
 */
#ifndef SAMPLER_AGENT_DIFF_H
#define SAMPLER_AGENT_DIFF_H

#include "proto/base/map.h"
#include "proto/model/profile.h"
#include "sampler/lib/publisher.h"

struct ef_heap_diff {
    struct ef_map bytes;   /* stack hash -> highest bytes seen */
    struct ef_map objects; /* stack hash -> highest count seen */
    int64_t total_bytes;   /* of the last profile */
};

void ef_heap_diff_init(struct ef_heap_diff *diff, size_t stacks_max);
void ef_heap_diff_fini(struct ef_heap_diff *diff);
/* Counting begins anew: the next profile counts from zero. */
void ef_heap_diff_reset(struct ef_heap_diff *diff);

/*
 * Gives the samples (free()) of a profile with types objects/count and space/bytes, one per stack
 * hash, without those that are zero. diff NULL: the values themselves. *ret_restarted: counting had
 * begun anew without a reset. EF_EINVAL: no type in bytes. EF_ELIMIT: more stacks than given at
 * birth. On failure diff is unchanged as to what was published, except EF_ENOMEM and EF_ELIMIT,
 * after which a reset is needed.
 */
EF_MUST_USE ef_rc ef_heap_samples(struct ef_heap_diff *diff, const struct ef_profile *profile,
                                  const uint64_t *hashes, struct ef_fragment_sample **ret_samples,
                                  size_t *ret_count, bool *ret_restarted, struct ef_err *err);

#endif
