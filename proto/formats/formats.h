/*
 * Readers and writers of profile files, by name. A reader gives a whole profile or an error, never
 * a part of one. Inputs are untrusted: sizes, depths and counts are bounded; one clear line says
 * what is wrong and where. Any thread.
 */
#ifndef PROTO_FORMATS_FORMATS_H
#define PROTO_FORMATS_FORMATS_H

#include "proto/base/buf.h"
#include "proto/model/profile.h"

#define EF_FORMAT_INPUT_BYTES_MAX (256u << 20) /* a file after decompression */
#define EF_FORMAT_OUTPUT_BYTES_MAX (512u << 20)

/* What a writer may say about the profile besides its tree. All borrowed; NULL and 0 = unknown. */
struct ef_format_about {
    const char *name;    /* title: "shop v41 cpu" */
    const char *build;   /* worker version */
    const char *program; /* worker; the mapping's file in pprof */
};

struct ef_format_ops {
    const char *name;         /* "pprof" */
    const char *suffix;       /* ".pprof": file name ending, also used to recognise it */
    const char *content_type; /* for HTTP */
    const char *sentence;
    bool binary; /* never written to a terminal */
    /* NULL when the format is only written. */
    ef_rc (*read)(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                  struct ef_profile **ret_profile, struct ef_err *err);
    /* Whether the content looks like this format; for files without a telling name. */
    bool (*sniff)(const uint8_t *data, size_t len);
    /* NULL when the format is only read. */
    ef_rc (*write)(const struct ef_profile *profile, const struct ef_format_about *about,
                   struct ef_buf *out, struct ef_err *err);
};

/* "pprof", "cpuprofile", "heapprofile", "folded", "speedscope", "json"; NULL when unknown. */
const struct ef_format_ops *ef_format_find(const char *name);
const struct ef_format_ops *ef_format_at(size_t index); /* NULL after the last */
/* By file name, then by content; `path` may be NULL. NULL when neither tells. */
const struct ef_format_ops *ef_format_guess(const char *path, const uint8_t *data, size_t len);
/* Reads with the given format, or NULL to guess; an error names what was tried. */
EF_MUST_USE ef_rc ef_format_read(const struct ef_format_ops *format, const char *path,
                                 const uint8_t *data, size_t len,
                                 const struct ef_profile_limits *limits,
                                 struct ef_profile **ret_profile, struct ef_err *err);

/*
 * The time-ordered samples of a V8 .cpuprofile, which the tree above does not keep; for the V8
 * sampler. `ticks[i].node` is a node of `profile`. Time is V8's clock (CLOCK_MONOTONIC of the host,
 * µs), taken from start + running sum of deltas, negative ones included. Nodes carry hitCount as
 * value of the only type, samples/count. (root) is node 0, also as a tick's node; (idle) is in the
 * tree. `profile->period` is the measured interval in ns. Also takes an inspector's reply as it
 * came ({"id":3,"result":{"profile":{...}}}). No ticks when the file has no times.
 */
struct ef_cpuprofile_tick {
    int64_t time_us;
    uint32_t node;
};
struct ef_cpuprofile {
    struct ef_profile *profile;       /* owned */
    struct ef_cpuprofile_tick *ticks; /* owned, sorted by time */
    size_t tick_count;
    int64_t start_us, end_us;
};
EF_MUST_USE ef_rc ef_cpuprofile_read_ticks(const uint8_t *data, size_t len,
                                           const struct ef_profile_limits *limits,
                                           struct ef_cpuprofile *ret, struct ef_err *err);
void ef_cpuprofile_fini(struct ef_cpuprofile *cpuprofile);
/* The middle of the largest group of gaps between ticks that differ by at most 5 %. The gaps are
 * sorted and not negative, count is at least 1. */
int64_t ef_cpuprofile_densest(const int64_t *gaps, size_t count);

#endif
