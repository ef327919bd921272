/*
 * Decides how a selection is checked before the server is asked, and how it is named afterwards.
 * Main thread.
 */
#include "collector/cli/selection.h"

#include "proto/base/time.h"

int
ef_cli_check_selector(const struct ef_cli *cli)
{
    int code = ef_cli_need_worker(cli);

    if (code == EF_CLI_OK)
        code = ef_cli_check_type(cli);
    return code == EF_CLI_OK ? ef_cli_check_range(cli) : code;
}

void
ef_cli_selection_line(const struct ef_cli *cli, const json_t *answer, const char *from,
                      const char *to, struct ef_buf *out)
{
    const json_t *versions = json_object_get(answer, "versions");
    int64_t span_ns;
    ef_wall_ns first, last, now = {0};
    size_t start = out->len;
    char span[64];

    ef_cli_paint(out, &cli->style, EF_CLI_BOLD);
    ef_cli_clean(out, cli->values.worker_id);
    ef_cli_paint(out, &cli->style, EF_CLI_PLAIN);
    if (json_array_size(versions) > 0) {
        ef_buf_append_str(out, json_array_size(versions) > 1 ? ", versions " : ", version ");
        ef_cli_join(out, versions);
    }
    ef_buf_append_str(out, ", ");
    ef_cli_clean(out, ef_cli_member_text(answer, "profile_type"));
    ef_buf_append_str(out, ", ");
    ef_cli_clean(out, from);
    ef_buf_append_str(out, " to ");
    ef_cli_clean(out, to);
    if (ef_wall_parse(from, now, &first, NULL) == EF_OK &&
        ef_wall_parse(to, now, &last, NULL) == EF_OK && last.ns > first.ns) {
        span_ns = last.ns - first.ns;
        ef_buf_printf(out, " (%s)", ef_span_format((ef_span_ns){span_ns}, span, sizeof(span)));
    }
    ef_buf_append_str(out, "\n");
    ef_cli_wrap(out, start, &cli->style, 2);
}

void
ef_cli_notes(const struct ef_cli *cli, const json_t *answer, struct ef_buf *out)
{
    const json_t *note;
    size_t i, start = out->len;

    json_array_foreach(json_object_get(answer, "notes"), i, note)
    {
        if (!json_is_string(note))
            continue;
        ef_cli_paint(out, &cli->style, EF_CLI_YELLOW);
        ef_buf_append_str(out, "note: ");
        ef_cli_clean(out, json_string_value(note));
        ef_cli_paint(out, &cli->style, EF_CLI_PLAIN);
        ef_buf_append_str(out, "\n");
    }
    ef_cli_wrap(out, start, &cli->style, 6);
}
