/*
 * The command `status`: one page about the collector, who publishes, what is sampled and at which
 * price, and what was lost.
 */
#include "collector/cli/request.h"
#include "collector/cli/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/time.h"

#define LABEL_WIDTH 10 /* columns of "collector" and its like */

static void
append_label(const struct ef_cli *cli, const char *label, struct ef_buf *out)
{
    ef_cli_paint(out, &cli->style, EF_CLI_BOLD);
    ef_buf_printf(out, "%-*s", LABEL_WIDTH, label);
    ef_cli_paint(out, &cli->style, EF_CLI_PLAIN);
}

static void
append_collector(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    double up_ns = ef_cli_member_span_ns(status, "started", "now");
    ef_span_ns up = {(int64_t)fmax(0, round(up_ns / (double)EF_NS_PER_S)) * EF_NS_PER_S};
    char text[64];

    append_label(cli, "collector", out);
    ef_buf_append_str(out, "version ");
    ef_cli_clean(out, ef_cli_member_text(status, "version"));
    ef_buf_printf(out, ", up %s, at ", ef_span_format(up, text, sizeof(text)));
    ef_cli_clean(out, cli->values.url);
    ef_buf_append_str(out, "\n");
}

static void
append_memory(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    static const struct {
        const char *member, *name;
    } parts[] = {
        {"aggregate_bytes", "open buckets"}, {"store_bytes", "store"}, {"query_bytes", "queries"}};
    const json_t *memory = json_object_get(status, "memory");
    double resident = ef_cli_member_number(memory, "resident_bytes");
    double cap = ef_cli_member_number(memory, "cap_bytes");
    char text[64];

    append_label(cli, "memory", out);
    ef_buf_append_str(out, ef_cli_bytes_text(resident, text, sizeof(text)));
    if (cap > 0) {
        ef_buf_printf(out, " of %s", ef_cli_bytes_text(cap, text, sizeof(text)));
        ef_buf_printf(out, " (%.0f %%)", 100 * resident / cap);
    }
    for (size_t i = 0; i < EF_COUNT_OF(parts); i++) {
        double bytes = ef_cli_member_number(memory, parts[i].member);
        if (isfinite(bytes))
            ef_buf_printf(out, ", %s %s", parts[i].name,
                          ef_cli_bytes_text(bytes, text, sizeof(text)));
    }
    ef_buf_append_str(out, "\n");
}

static void
append_disk(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    const json_t *disk = json_object_get(status, "disk");
    double per_sample = ef_cli_member_number(disk, "bytes_per_sample");
    const char *oldest = ef_cli_member_text(disk, "oldest");
    char text[64];

    append_label(cli, "disk", out);
    ef_buf_append_str(out,
                      ef_cli_bytes_text(ef_cli_member_number(disk, "bytes"), text, sizeof(text)));
    if (isfinite(per_sample))
        ef_buf_printf(out, ", %.2f bytes per sample", per_sample);
    if (*oldest != '\0') {
        ef_buf_append_str(out, ", data from ");
        ef_cli_clean(out, oldest);
        ef_buf_append_str(out, " to ");
        ef_cli_clean(out, ef_cli_member_text(disk, "newest"));
    } else {
        ef_buf_append_str(out, ", no data yet");
    }
    ef_buf_append_str(out, "\n");
}

static void
append_samples(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    static const struct {
        const char *member, *sentence;
    } losses[] = {
        {"lost", "were lost: publishers had no room for them before they were acknowledged"},
        {"late", "came too late for the life of their buckets"},
        {"duplicate", "came twice and were counted once"},
    };
    const json_t *samples = json_object_get(status, "samples");
    char text[64];

    append_label(cli, "samples", out);
    ef_buf_printf(out, "%s stored",
                  ef_cli_count_text(ef_cli_member_number(samples, "stored"), text, sizeof(text)));
    ef_buf_printf(
        out, " of %s published\n",
        ef_cli_count_text(ef_cli_member_number(samples, "published"), text, sizeof(text)));
    for (size_t i = 0; i < EF_COUNT_OF(losses); i++) {
        double count = ef_cli_member_number(samples, losses[i].member);
        bool harmless = strcmp(losses[i].member, "duplicate") == 0;
        if (!(count > 0))
            continue;
        ef_buf_printf(out, "%*s", LABEL_WIDTH, "");
        ef_cli_paint(out, &cli->style, harmless ? "" : EF_CLI_YELLOW);
        ef_buf_printf(out, "%s samples %s", ef_cli_count_text(count, text, sizeof(text)),
                      losses[i].sentence);
        ef_cli_paint(out, &cli->style, harmless ? "" : EF_CLI_PLAIN);
        ef_buf_append_str(out, "\n");
    }
}

static void
append_imported(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    const json_t *imported = json_object_get(status, "imported");
    double profiles = ef_cli_member_number(imported, "profiles");
    char samples[64], text[64];

    if (!(profiles > 0))
        return;
    append_label(cli, "imported", out);
    ef_buf_printf(
        out, "%s samples of %s profile%s\n",
        ef_cli_count_text(ef_cli_member_number(imported, "samples"), samples, sizeof(samples)),
        ef_cli_count_text(profiles, text, sizeof(text)), profiles > 1 ? "s" : "");
}

static void
append_limits(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    const json_t *limit;
    char text[64];
    size_t i;

    json_array_foreach(json_object_get(status, "limits"), i, limit)
    {
        append_label(cli, "limit", out);
        ef_cli_paint(out, &cli->style, EF_CLI_YELLOW);
        ef_cli_clean(out, ef_cli_member_text(limit, "name"));
        ef_buf_printf(out, " reached %s times: ",
                      ef_cli_count_text(ef_cli_member_number(limit, "count"), text, sizeof(text)));
        ef_cli_clean(out, ef_cli_member_text(limit, "message"));
        ef_cli_paint(out, &cli->style, EF_CLI_PLAIN);
        ef_buf_append_str(out, "\n");
    }
}

static void
add_count(struct ef_cli_table *table, const json_t *object, const char *name)
{
    char text[64];

    ef_cli_table_add(table,
                     ef_cli_count_text(ef_cli_member_number(object, name), text, sizeof(text)));
}

static bool
is_too_wide(const struct ef_cli *cli, const struct ef_cli_table *table)
{
    return cli->style.width > 0 && ef_cli_table_width_least(table) > cli->style.width;
}

/* "connected", or "seen 3 min ago". */
static void
add_seen(struct ef_cli_table *table, const json_t *status, const json_t *publisher)
{
    ef_wall_ns none = {0}, now, seen;
    char text[64];

    if (json_is_true(json_object_get(publisher, "connected")))
        ef_cli_table_add(table, "connected");
    else if (ef_wall_parse(ef_cli_member_text(status, "now"), none, &now, NULL) == EF_OK &&
             ef_wall_parse(ef_cli_member_text(publisher, "last_seen"), none, &seen, NULL) == EF_OK)
        ef_cli_table_addf(table, "seen %s ago",
                          ef_cli_ns_text((double)(now.ns - seen.ns), text, sizeof(text)));
    else
        ef_cli_table_add(table, "never seen");
}

static void
add_publisher(struct ef_cli_table *table, const json_t *status, const json_t *row, bool narrow)
{
    const json_t *samples = json_object_get(row, "samples");
    const char *name = ef_cli_member_text(row, "name");
    char used[64], most[64];

    ef_cli_table_add(table, *name != '\0' ? name : ef_cli_member_text(row, "publisher"));
    if (narrow) {
        add_seen(table, status, row);
    } else {
        ef_cli_table_add(table, json_is_true(json_object_get(row, "connected")) ? "yes" : "no");
        ef_cli_table_add(table, ef_cli_member_text(row, "last_seen"));
    }
    add_count(table, samples, "stored");
    add_count(table, samples, "lost");
    add_count(table, samples, "late");
    ef_cli_table_addf(
        table, "%s of %s",
        ef_cli_bytes_text(ef_cli_member_number(row, "spool_bytes"), used, sizeof(used)),
        ef_cli_bytes_text(ef_cli_member_number(row, "spool_bytes_max"), most, sizeof(most)));
}

static void
append_publishers(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    static const struct ef_cli_column wide[] = {
        {"PUBLISHER", false, true}, {"CONNECTED", false, false}, {"LAST SEEN", false, false},
        {"STORED", true, false},    {"LOST", true, false},       {"LATE", true, false},
        {"SPOOL", true, false}};
    static const struct ef_cli_column narrow[] = {
        {"PUBLISHER", false, true}, {"STATE", false, false}, {"STORED", true, false},
        {"LOST", true, false},      {"LATE", true, false},   {"SPOOL", true, false}};
    const json_t *publishers = json_object_get(status, "publishers");
    struct ef_cli_table table;
    const json_t *row;
    size_t i;

    ef_buf_append_str(out, "\n");
    if (json_array_size(publishers) == 0) {
        ef_buf_append_str(out, "No publisher has connected yet.\n");
        return;
    }
    ef_cli_table_init(&table, wide, EF_COUNT_OF(wide));
    json_array_foreach(publishers, i, row) add_publisher(&table, status, row, false);
    if (is_too_wide(cli, &table)) {
        ef_cli_table_fini(&table);
        ef_cli_table_init(&table, narrow, EF_COUNT_OF(narrow));
        json_array_foreach(publishers, i, row) add_publisher(&table, status, row, true);
    }
    ef_cli_table_print(&table, &cli->style, out);
    ef_cli_table_fini(&table);
}

/* "0.21 %, longest pause 12 ms", or "0.21 %, 12 ms" */
static void
add_cost(struct ef_cli_table *table, const json_t *target, bool narrow)
{
    const json_t *cost = json_object_get(target, "sampling_cost");
    double cpu_ratio = ef_cli_member_number(cost, "cpu_ratio");
    double pause_ms = ef_cli_member_number(cost, "pause_ms_max");
    char percent[64];

    if (!isfinite(cpu_ratio) && !isfinite(pause_ms))
        ef_cli_table_add(table, "-");
    else if (!isfinite(pause_ms))
        ef_cli_table_add(table, ef_cli_percent_text(cpu_ratio, percent, sizeof(percent)));
    else
        ef_cli_table_addf(table, "%s, %s%.3g ms",
                          ef_cli_percent_text(cpu_ratio, percent, sizeof(percent)),
                          narrow ? "" : "longest pause ", pause_ms);
}

static void
add_target(struct ef_cli_table *table, const json_t *row, bool narrow)
{
    ef_cli_table_add(table, ef_cli_member_text(row, "worker"));
    ef_cli_table_add(table, ef_cli_member_text(row, "version"));
    if (!narrow)
        ef_cli_table_add(table, ef_cli_member_text(row, "host"));
    ef_cli_table_add(table, ef_cli_member_text(row, "runtime"));
    ef_cli_table_add(table, ef_cli_member_text(row, "state"));
    add_count(table, row, "samples");
    if (!narrow)
        add_count(table, row, "samples_starved");
    add_cost(table, row, narrow);
    if (!narrow)
        ef_cli_table_add(table, ef_cli_member_text(row, "message"));
}

/* Below a narrow table, for it has no room: what a target says, and samples it could not use. */
static void
append_target_words(const struct ef_cli *cli, const json_t *row, struct ef_buf *out)
{
    const char *message = ef_cli_member_text(row, "message");
    double starved = ef_cli_member_number(row, "samples_starved");
    size_t start = out->len;
    char text[64];

    if (*message == '\0' && !(starved > 0))
        return;
    ef_cli_clean(out, ef_cli_member_text(row, "worker"));
    ef_buf_append_str(out, " ");
    ef_cli_clean(out, ef_cli_member_text(row, "version"));
    ef_buf_append_str(out, " on ");
    ef_cli_clean(out, ef_cli_member_text(row, "host"));
    ef_buf_append_str(out, ": ");
    ef_cli_clean(out, message);
    if (starved > 0)
        ef_buf_printf(out, "%s%s samples starved", *message != '\0' ? "; " : "",
                      ef_cli_count_text(starved, text, sizeof(text)));
    ef_buf_append_str(out, "\n");
    ef_cli_wrap(out, start, &cli->style, 2);
}

static void
append_targets(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    static const struct ef_cli_column wide[] = {
        {"TARGET", false, true},   {"VERSION", false, true}, {"HOST", false, true},
        {"RUNTIME", false, false}, {"STATE", false, false},  {"SAMPLES", true, false},
        {"STARVED", true, false},  {"COST", false, false},   {"MESSAGE", false, true}};
    static const struct ef_cli_column narrow[] = {
        {"TARGET", false, true}, {"VERSION", false, true}, {"RUNTIME", false, false},
        {"STATE", false, false}, {"SAMPLES", true, false}, {"COST, PAUSE", false, false}};
    const json_t *targets = json_object_get(status, "targets");
    struct ef_cli_table table;
    const json_t *row;
    bool is_narrow;
    size_t i;

    ef_buf_append_str(out, "\n");
    if (json_array_size(targets) == 0) {
        ef_buf_append_str(out, "No target is sampled.\n");
        return;
    }
    ef_cli_table_init(&table, wide, EF_COUNT_OF(wide));
    json_array_foreach(targets, i, row) add_target(&table, row, false);
    is_narrow = is_too_wide(cli, &table);
    if (is_narrow) {
        ef_cli_table_fini(&table);
        ef_cli_table_init(&table, narrow, EF_COUNT_OF(narrow));
        json_array_foreach(targets, i, row) add_target(&table, row, true);
    }
    ef_cli_table_print(&table, &cli->style, out);
    ef_cli_table_fini(&table);
    json_array_foreach(targets, i, row)
    {
        if (is_narrow)
            append_target_words(cli, row, out);
    }
}

static void
append_head(const struct ef_cli *cli, const json_t *status, struct ef_buf *out)
{
    size_t start = out->len;

    append_collector(cli, status, out);
    append_memory(cli, status, out);
    append_disk(cli, status, out);
    append_samples(cli, status, out);
    append_imported(cli, status, out);
    append_limits(cli, status, out);
    ef_cli_wrap(out, start, &cli->style, LABEL_WIDTH);
}

int
ef_cli_status(struct ef_cli *cli)
{
    struct ef_cli_answer answer;
    struct ef_buf url;
    int code;

    ef_cli_url_begin(cli, &url, "/api/v1/status");
    code = ef_cli_ask_json(cli, &url, NULL, 0, JSON_OBJECT, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    if (cli->values.json) {
        ef_cli_answer_pass(&answer, &cli->out);
    } else {
        append_head(cli, answer.json, &cli->out);
        append_publishers(cli, answer.json, &cli->out);
        append_targets(cli, answer.json, &cli->out);
    }
    ef_cli_answer_fini(&answer);
    return EF_CLI_OK;
}
