/*
 * Three times that the compiler refuses to mix: wall clock (buckets), monotonic (timeouts, duty
 * cycles), span. All in nanoseconds. Wall time counts from 1970 UTC.
 */
#ifndef PROTO_BASE_TIME_H
#define PROTO_BASE_TIME_H

#include "proto/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define EF_NS_PER_US INT64_C(1000)
#define EF_NS_PER_MS INT64_C(1000000)
#define EF_NS_PER_S INT64_C(1000000000)

typedef struct {
    int64_t ns;
} ef_wall_ns;
typedef struct {
    int64_t ns;
} ef_mono_ns;
typedef struct {
    int64_t ns;
} ef_span_ns;

ef_wall_ns ef_wall_now(void);
ef_mono_ns ef_mono_now(void);

static inline ef_span_ns
ef_mono_since(ef_mono_ns from, ef_mono_ns to)
{
    return (ef_span_ns){to.ns - from.ns};
}

/* Start of the bucket that holds `at`; floor, also before 1970. span_ns > 0. */
int64_t ef_bucket_start(int64_t at_ns, int64_t span_ns);

/*
 * Parses a time of the command line: "now", "now-15m", "now+5s", RFC 3339 ("2026-12-01T03:12:00Z",
 * "+01:00", fraction, also a space instead of T), Unix seconds (up to 11 digits, a fraction
 * allowed) or milliseconds (12 to 14 digits).
 */
EF_MUST_USE ef_rc ef_wall_parse(const char *text, ef_wall_ns now, ef_wall_ns *ret,
                                struct ef_err *err);
/* Parses "90s", "15m", "250ms", "2h", "1d", "1h30m"; a bare number is milliseconds. Not negative.
 */
EF_MUST_USE ef_rc ef_span_parse(const char *text, ef_span_ns *ret, struct ef_err *err);
/* Writes RFC 3339 in UTC with milliseconds when not zero: "2026-12-01T03:12:00.250Z". len >= 32.
 * Returns buf. */
const char *ef_wall_format(ef_wall_ns at, char *buf, size_t len);
/* Writes "90s", "250ms", "1h30m": the same form that ef_span_parse reads. len >= 32. Returns buf.
 */
const char *ef_span_format(ef_span_ns span, char *buf, size_t len);

#endif
