/*
 * Process-wide counters and gauges, declared once in metrics.def. Any thread; relaxed atomics, a
 * few nanoseconds.
 */
#ifndef PROTO_BASE_METRIC_H
#define PROTO_BASE_METRIC_H

#include "proto/base/err.h"

enum ef_metric {
#define X(name, kind, sentence, action) EF_METRIC_##name,
#include "proto/base/metrics.def"
#undef X
    EF_METRIC_COUNT
};

/* Counts in thousandths inside, so that seconds may be fractions: use _add for whole numbers,
 * _add_milli for thousandths. */
void ef_metric_add(enum ef_metric metric, uint64_t count);
void ef_metric_add_milli(enum ef_metric metric, uint64_t thousandths);
void ef_metric_set(enum ef_metric metric, uint64_t value);
uint64_t ef_metric_get(enum ef_metric metric); /* whole part */
/* Appends all metrics in the Prometheus text form. */
struct ef_buf;
void ef_metric_expose(struct ef_buf *out);
/* Appends the Markdown table of metrics. */
void ef_metric_reference(struct ef_buf *out);

#endif
