/*
 * Reads and writes pprof's profile.proto, gzipped or plain.
 *
 * Invariants: a reader gives a whole profile or an error, never a part of one; what it allocates is
 * bounded by what it was given, not by numbers in the input. Of a profile it drops labels (counted
 * in labels_dropped), comments, drop_frames and keep_frames. Any thread.
 */
#ifndef PROTO_PPROF_PPROF_H
#define PROTO_PPROF_PPROF_H

#include "proto/base/buf.h"
#include "proto/model/profile.h"

/* Said in the file besides the tree. Borrowed; NULL = unknown. */
struct ef_pprof_about {
    const char *build;   /* build id of the mapping, when the profile has no mapping */
    const char *program; /* file of the mapping, likewise */
    const char *comment; /* shown by `go tool pprof -comments` */
};

/* Whether the bytes look like gzip, or like a plain profile.proto. */
bool ef_pprof_sniff(const uint8_t *data, size_t len);
/*
 * EF_ECORRUPT for what is not a pprof, EF_ELIMIT when it is larger than bytes_max after
 * decompression, deeper than EF_PROFILE_DEPTH_MAX or beyond the limits.
 */
EF_MUST_USE ef_rc ef_pprof_read(const uint8_t *data, size_t len, size_t bytes_max,
                                const struct ef_profile_limits *limits,
                                struct ef_profile **ret_profile, struct ef_err *err);
/*
 * Appends the gzipped profile; the same profile always gives the same bytes. Stacks whose values
 * are all zero are left out. `out` is as before on failure. bytes_max bounds it before compression.
 */
EF_MUST_USE ef_rc ef_pprof_write(const struct ef_profile *profile,
                                 const struct ef_pprof_about *about, size_t bytes_max,
                                 struct ef_buf *out, struct ef_err *err);

/* The gzip layer, both directions. Appends to `out`, whose maximum is the bound. */
EF_MUST_USE ef_rc ef_gzip_inflate(const uint8_t *data, size_t len, struct ef_buf *out,
                                  struct ef_err *err);
EF_MUST_USE ef_rc ef_gzip_deflate(const uint8_t *data, size_t len, struct ef_buf *out,
                                  struct ef_err *err);

#endif
