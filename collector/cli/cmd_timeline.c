/*
 * The command `timeline`: one bar per step, and where samples are missing.
 */
#include "collector/cli/selection.h"
#include "collector/cli/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/time.h"

#define BAR_WIDTH_MAX 40 /* columns; chosen */
#define BAR_WIDTH_MIN 8  /* on a narrow terminal; less shows nothing; chosen */
#define GAPS_EACH_MAX 3  /* a longer run of steps without samples is one line */

/* How the values of an answer are shown: raw value × factor of a point, and the unit's name. */
struct scale {
    const char *unit;
    bool per_second; /* a delta type: the value is divided by the length of its step */
    double factor;
};

static struct scale
scale_of(const json_t *answer)
{
    const char *unit = ef_cli_member_text(answer, "unit");
    bool state = strcmp(ef_cli_member_text(answer, "profile_type"), "inuse") == 0;

    if (strcmp(unit, "nanoseconds") == 0)
        return (struct scale){"cores", true, 1e-9};
    if (strcmp(unit, "bytes") == 0)
        return (struct scale){state ? "MB" : "MB/s", !state, 1e-6};
    return (struct scale){state ? unit : "per second", !state, 1};
}

static double
point_value(const struct scale *scale, const json_t *point)
{
    double value = ef_cli_member_number(point, "value") * scale->factor;
    double span_ns = ef_cli_member_span_ns(point, "from", "to");

    if (!scale->per_second)
        return value;
    return span_ns > 0 ? value / (span_ns / (double)EF_NS_PER_S) : NAN;
}

static bool
is_gap(const json_t *point)
{
    return !(ef_cli_member_number(point, "samples") > 0) &&
           !(ef_cli_member_number(point, "coverage") > 0);
}

static double
highest(const struct scale *scale, const json_t *points)
{
    const json_t *point;
    double most = 0;
    size_t i;

    json_array_foreach(points, i, point)
    {
        double value = point_value(scale, point);
        if (isfinite(value) && value > most)
            most = value;
    }
    return most;
}

/* A bar of eighths of a column, or of '#' where the locale is not UTF-8. */
static void
bar_text(double ratio, size_t width, bool utf8, char *buf, size_t len)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    size_t parts = ratio > 0 ? (size_t)lround(fmin(ratio, 1) * (double)width * 8) : 0;
    size_t used = 0;

    buf[0] = '\0';
    for (; parts >= 8 && used + 8 < len; parts -= 8)
        used += (size_t)snprintf(buf + used, len - used, "%s", utf8 ? "█" : "#");
    if (utf8)
        snprintf(buf + used, len - used, "%s", eighths[parts % 8]);
    else if (parts >= 4)
        snprintf(buf + used, len - used, "#");
}

static void
add_point(struct ef_cli_table *table, const struct ef_cli *cli, const struct scale *scale,
          const json_t *point, double most, size_t room)
{
    double value = point_value(scale, point);
    char text[64], bar[BAR_WIDTH_MAX * 3 + 16];

    ef_cli_table_add(table, ef_cli_member_text(point, "from"));
    if (isfinite(value))
        ef_cli_table_addf(table, "%.3f", value);
    else
        ef_cli_table_add(table, "-");
    ef_cli_table_add(table,
                     ef_cli_count_text(ef_cli_member_number(point, "samples"), text, sizeof(text)));
    ef_cli_table_add(
        table, ef_cli_percent_text(ef_cli_member_number(point, "coverage"), text, sizeof(text)));
    bar_text(most > 0 ? value / most : 0, room, cli->style.utf8, bar, sizeof(bar));
    ef_cli_table_add(table, bar);
}

static void
add_gap(struct ef_cli_table *table, const json_t *first, const char *last_to, size_t step_count,
        size_t room)
{
    double cpu_ns = ef_cli_member_number(first, "process_cpu_ns");
    char text[64], cpu[64] = "", gap[160] = "(gap: no samples)";
    int len = 0;

    ef_cli_table_add(table, ef_cli_member_text(first, "from"));
    ef_cli_table_add(table, "-");
    ef_cli_table_add(table, "0");
    ef_cli_table_add(table, "0.00 %");
    if (step_count == 1 && cpu_ns > 0)
        snprintf(cpu, sizeof(cpu), ", process CPU %s", ef_cli_ns_text(cpu_ns, text, sizeof(text)));
    if (step_count > 1)
        len = snprintf(gap, sizeof(gap), "(gap: no samples in %zu steps, to %.40s)", step_count,
                       last_to);
    else if (cpu_ns > 0)
        len = snprintf(gap, sizeof(gap), "(gap: no samples%s)", cpu);
    if (len > 0 && (size_t)len > room && step_count > 1) /* the next row says until when */
        snprintf(gap, sizeof(gap), "(gap of %zu steps)", step_count);
    else if (len > 0 && (size_t)len > room)
        snprintf(gap, sizeof(gap), "(gap%s)", cpu);
    ef_cli_table_add(table, gap);
}

/* Steps from `start` on without samples. */
static size_t
gap_length(const json_t *points, size_t start)
{
    size_t end = start;

    while (end < json_array_size(points) && is_gap(json_array_get(points, end)))
        end++;
    return end - start;
}

/* `room`: columns for bars and words about gaps. */
static void
add_rows(struct ef_cli_table *table, const struct ef_cli *cli, const struct scale *scale,
         const json_t *points, size_t bar_width, size_t room)
{
    double most = highest(scale, points);

    for (size_t i = 0; i < json_array_size(points);) {
        const json_t *point = json_array_get(points, i);
        size_t gap = gap_length(points, i);
        if (gap > GAPS_EACH_MAX) {
            add_gap(table, point, ef_cli_member_text(json_array_get(points, i + gap - 1), "to"),
                    gap, room);
            i += gap;
            continue;
        }
        if (gap > 0)
            add_gap(table, point, "", 1, room);
        else
            add_point(table, cli, scale, point, most, bar_width);
        i++;
    }
}

static void
append_points(const struct ef_cli *cli, const json_t *answer, struct ef_buf *out)
{
    struct scale scale = scale_of(answer);
    const struct ef_cli_column columns[] = {{"TIME", false, false},
                                            {scale.unit, true, false},
                                            {"SAMPLES", true, false},
                                            {"COVERAGE", true, false},
                                            {"", false, true}};
    const json_t *points = json_object_get(answer, "points");
    size_t width = cli->style.width, room = SIZE_MAX, bar_width = BAR_WIDTH_MAX, numbers = 0;
    struct ef_cli_table table;

    if (width > 0) { /* how wide the numbers are is known when they are written */
        ef_cli_table_init(&table, columns, EF_COUNT_OF(columns));
        add_rows(&table, cli, &scale, points, 0, 0);
        for (size_t i = 0; i + 1 < table.column_count; i++)
            numbers += table.widths[i] + 2;
        ef_cli_table_fini(&table);
        room = width > numbers + BAR_WIDTH_MIN ? width - numbers : BAR_WIDTH_MIN;
        bar_width = room < BAR_WIDTH_MAX ? room : BAR_WIDTH_MAX;
    }
    ef_cli_table_init(&table, columns, EF_COUNT_OF(columns));
    add_rows(&table, cli, &scale, points, bar_width, room);
    ef_cli_table_print(&table, &cli->style, out);
    ef_cli_table_fini(&table);
}

/* EF_CLI_OK, or why there is nothing to draw. */
static int
check_points(const struct ef_cli *cli, const struct ef_cli_answer *answer)
{
    const json_t *points = json_object_get(answer->json, "points");
    size_t count = json_array_size(points);
    int code = ef_cli_answer_empty(answer);

    if (code != EF_CLI_OK)
        return code;
    if (!json_is_array(points)) {
        ef_cli_say("the answer of %s has no list of points", cli->values.url);
        return EF_CLI_FAILED;
    }
    if (gap_length(points, 0) < count)
        return EF_CLI_OK;
    ef_cli_say("there are no samples of worker '%s' in this range (hint: 'everflame workers "
               "versions list' shows when it was last seen)",
               cli->values.worker_id);
    return EF_CLI_NOTHING;
}

int
ef_cli_timeline(struct ef_cli *cli)
{
    struct ef_cli_answer answer;
    const json_t *points;
    struct ef_buf url;
    char step[64];
    int code = ef_cli_check_selector(cli);

    if (code != EF_CLI_OK)
        return code;
    ef_cli_url_begin(cli, &url, "/api/v1/timeline");
    ef_cli_url_selector(cli, &url);
    ef_span_format((ef_span_ns){(int64_t)cli->values.step_ms * EF_NS_PER_MS}, step, sizeof(step));
    ef_cli_url_param(&url, "step", step);
    code = ef_cli_ask_json(cli, &url, NULL, 0, JSON_OBJECT, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    points = json_object_get(answer.json, "points");
    code = check_points(cli, &answer);
    if (cli->values.json) {
        ef_cli_answer_pass(&answer, &cli->out);
    } else if (code == EF_CLI_OK) {
        ef_cli_selection_line(
            cli, answer.json, ef_cli_member_text(json_array_get(points, 0), "from"),
            ef_cli_member_text(json_array_get(points, json_array_size(points) - 1), "to"),
            &cli->out);
        ef_cli_notes(cli, answer.json, &cli->out);
        ef_buf_append_str(&cli->out, "\n");
        append_points(cli, answer.json, &cli->out);
    }
    ef_cli_answer_fini(&answer);
    return code;
}
