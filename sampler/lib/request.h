/*
 * Builds the sync request from what is held now.
 */
#ifndef SAMPLER_LIB_REQUEST_H
#define SAMPLER_LIB_REQUEST_H

#include "sampler/lib/spool.h"
#include "sampler/lib/targets.h"

/*
 * Encodes a request with this number into `out`. When the target list makes it too large, the list
 * is shortened. EF_ENOMEM. Call with the publisher's lock held.
 */
EF_MUST_USE ef_rc ef_request_encode(const struct ef_spool *spool, struct ef_targets *targets,
                                    const char *name, uint64_t number, struct ef_buf *out,
                                    struct ef_err *err);

#endif
