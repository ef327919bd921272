/*
 * Keeps the metrics. Any thread.
 */
#include "proto/base/metric.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "proto/base/buf.h"

enum metric_kind { COUNTER, GAUGE };

static const struct {
    const char *name;
    enum metric_kind kind;
    const char *sentence;
    const char *action;
} metric_rows[] = {
#define X(name, kind, sentence, action) {#name, kind, sentence, action},
#include "proto/base/metrics.def"
#undef X
};

static _Atomic uint64_t values_milli[EF_METRIC_COUNT];

void
ef_metric_add_milli(enum ef_metric metric, uint64_t thousandths)
{
    atomic_fetch_add_explicit(&values_milli[metric], thousandths, memory_order_relaxed);
}

void
ef_metric_add(enum ef_metric metric, uint64_t count)
{
    ef_metric_add_milli(metric, count * 1000);
}

void
ef_metric_set(enum ef_metric metric, uint64_t value)
{
    atomic_store_explicit(&values_milli[metric], value * 1000, memory_order_relaxed);
}

uint64_t
ef_metric_get(enum ef_metric metric)
{
    return atomic_load_explicit(&values_milli[metric], memory_order_relaxed) / 1000;
}

void
ef_metric_expose(struct ef_buf *out)
{
    for (size_t i = 0; i < EF_METRIC_COUNT; i++) {
        uint64_t milli = atomic_load_explicit(&values_milli[i], memory_order_relaxed);
        ef_buf_printf(out, "# HELP everflame_%s %s\n# TYPE everflame_%s %s\neverflame_%s %" PRIu64,
                      metric_rows[i].name, metric_rows[i].sentence, metric_rows[i].name,
                      metric_rows[i].kind == COUNTER ? "counter" : "gauge", metric_rows[i].name,
                      milli / 1000);
        if (milli % 1000 != 0)
            ef_buf_printf(out, ".%03u", (unsigned)(milli % 1000));
        ef_buf_append_str(out, "\n");
    }
}

void
ef_metric_reference(struct ef_buf *out)
{
    ef_buf_append_str(out,
                      "| Metric | Kind | Meaning | When it rises |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < EF_METRIC_COUNT; i++)
        ef_buf_printf(out, "| `everflame_%s` | %s | %s | %s |\n", metric_rows[i].name,
                      metric_rows[i].kind == COUNTER ? "counter" : "gauge", metric_rows[i].sentence,
                      metric_rows[i].action);
}
