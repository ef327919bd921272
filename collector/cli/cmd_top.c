/*
 * The command `top`: functions by cost, each share with its interval.
 */
#include "collector/cli/selection.h"
#include "collector/cli/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void
add_share(struct ef_cli_table *table, const json_t *share)
{
    char text[64];

    ef_cli_table_add(table,
                     ef_cli_share_text(ef_cli_member_number(share, "share"),
                                       ef_cli_member_number(share, "low"),
                                       ef_cli_member_number(share, "high"), text, sizeof(text)));
}

static void
add_function(struct ef_cli_table *table, const json_t *function, const char *name)
{
    const char *file = ef_cli_member_text(function, "file");
    double line = ef_cli_member_number(function, "line");
    struct ef_buf place;

    add_share(table, json_object_get(function, "self"));
    add_share(table, json_object_get(function, "total"));
    ef_cli_table_add(table, *name != '\0' ? name : "(anonymous)");
    ef_buf_init(&place, EF_CLI_JSON_BYTES_MAX);
    ef_buf_append_str(&place, file);
    if (*file != '\0' && line > 0)
        ef_buf_printf(&place, ":%.0f", line);
    ef_buf_put_u8(&place, '\0');
    ef_cli_table_add(table, place.failed ? "?" : (const char *)place.data);
    ef_buf_fini(&place);
}

/* "total 12.3 s of CPU (95 %: 11.9 s to 12.8 s), 0.41 cores" */
static void
append_total(const json_t *answer, struct ef_buf *out)
{
    const json_t *total = json_object_get(answer, "total");
    const char *unit = ef_cli_member_text(total, "unit");
    double value = ef_cli_member_number(total, "value");
    double low = ef_cli_member_number(total, "low");
    double high = ef_cli_member_number(total, "high");
    double span_ns = ef_cli_member_span_ns(answer, "from", "to");
    bool cpu = strcmp(ef_cli_member_text(answer, "profile_type"), "cpu") == 0;
    char text[64], low_text[64], high_text[64];

    if (!isfinite(value))
        return;
    ef_buf_append_str(out, ", total ");
    ef_cli_clean(out, ef_cli_value_text(value, unit, text, sizeof(text)));
    ef_buf_append_str(out, cpu ? " of CPU" : "");
    if (isfinite(low) && isfinite(high)) {
        ef_buf_append_str(out, " (95 %: ");
        ef_cli_clean(out, ef_cli_value_text(low, unit, low_text, sizeof(low_text)));
        ef_buf_append_str(out, " to ");
        ef_cli_clean(out, ef_cli_value_text(high, unit, high_text, sizeof(high_text)));
        ef_buf_append_str(out, ")");
    }
    if (!cpu || span_ns <= 0 || strcmp(unit, "nanoseconds") != 0)
        return;
    if (value / span_ns < 0.001)
        ef_buf_append_str(out, ", less than 0.001 cores");
    else
        ef_buf_printf(out, ", %.3g cores", value / span_ns);
}

static void
append_header(const struct ef_cli *cli, const json_t *answer, struct ef_buf *out)
{
    double process_cpu_ns = ef_cli_member_number(answer, "process_cpu_ns");
    char text[64];
    size_t start;

    ef_cli_selection_line(cli, answer, ef_cli_member_text(answer, "from"),
                          ef_cli_member_text(answer, "to"), out);
    start = out->len;
    ef_buf_printf(out, "%s samples",
                  ef_cli_count_text(ef_cli_member_number(answer, "samples"), text, sizeof(text)));
    ef_buf_printf(
        out, ", coverage %s",
        ef_cli_percent_text(ef_cli_member_number(answer, "coverage"), text, sizeof(text)));
    append_total(answer, out);
    if (process_cpu_ns > 0)
        ef_buf_printf(out, ", process CPU %s", ef_cli_ns_text(process_cpu_ns, text, sizeof(text)));
    ef_buf_append_str(out, "\n");
    ef_cli_wrap(out, start, &cli->style, 2);
    ef_cli_notes(cli, answer, out);
    ef_buf_append_str(out, "\n");
}

static void
append_table(const struct ef_cli *cli, const json_t *answer, struct ef_buf *out)
{
    static const struct ef_cli_column columns[] = {{"SELF (95 %)", true, false},
                                                   {"TOTAL (95 %)", true, false},
                                                   {"FUNCTION", false, true},
                                                   {"FILE:LINE", false, EF_CLI_CUT_START}};
    const json_t *other = json_object_get(answer, "other");
    const json_t *function;
    struct ef_cli_table table;
    size_t i;

    ef_cli_table_init(&table, columns, EF_COUNT_OF(columns));
    json_array_foreach(json_object_get(answer, "functions"), i, function)
    {
        add_function(&table, function, ef_cli_member_text(function, "name"));
    }
    if (json_is_object(other))
        add_function(&table, other, "(other functions)");
    ef_cli_table_print(&table, &cli->style, out);
    ef_cli_table_fini(&table);
}

int
ef_cli_top(struct ef_cli *cli)
{
    struct ef_cli_answer answer;
    struct ef_buf url;
    char limit[32];
    int code = ef_cli_check_selector(cli);

    if (code != EF_CLI_OK)
        return code;
    ef_cli_url_begin(cli, &url, "/api/v1/top");
    ef_cli_url_selector(cli, &url);
    snprintf(limit, sizeof(limit), "%" PRIu64, cli->values.limit);
    ef_cli_url_param(&url, "limit", limit);
    code = ef_cli_ask_json(cli, &url, NULL, 0, JSON_OBJECT, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    code = ef_cli_answer_empty(&answer);
    if (cli->values.json) {
        ef_cli_answer_pass(&answer, &cli->out);
    } else if (code == EF_CLI_OK && !json_is_array(json_object_get(answer.json, "functions"))) {
        ef_cli_say("the answer of %s has no list of functions", cli->values.url);
        code = EF_CLI_FAILED;
    } else if (code == EF_CLI_OK) {
        append_header(cli, answer.json, &cli->out);
        append_table(cli, answer.json, &cli->out);
    }
    ef_cli_answer_fini(&answer);
    return code;
}
