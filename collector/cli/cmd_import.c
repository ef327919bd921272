/*
 * The command `import`: sends profile files as they are; the server takes or refuses each whole.
 */
#include "collector/cli/request.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/time.h"

#define BAR_WIDTH 24 /* columns; chosen */

struct import_state {
    struct ef_cli *cli;
    size_t done, failed; /* files */
    double samples;
    int stop_code; /* no further file can be sent: unreachable, not authenticated */
};

/* The bar of terminals. Blanks before the return, so that a message may follow on the line. */
static void
show_progress(const struct import_state *state, const char *path)
{
    size_t count = (size_t)state->cli->argument_count;
    size_t full = BAR_WIDTH * state->done / count;
    struct ef_buf line;

    if (!state->cli->style.progress)
        return;
    ef_buf_init(&line, 8192);
    ef_buf_append_str(&line, "\r\033[K");
    if (path != NULL) {
        ef_buf_append_str(&line, "[");
        for (size_t i = 0; i < BAR_WIDTH; i++)
            ef_buf_append_str(&line, i < full ? "#" : ".");
        ef_buf_printf(&line, "] %zu/%zu ", state->done + 1, count);
        ef_cli_clean(&line, path);
    }
    EF_IGNORE(write(STDERR_FILENO, line.data, line.len) < 0, "a bar that fails is no failure");
    ef_buf_fini(&line);
}

static void
import_url(const struct ef_cli *cli, const char *path, struct ef_buf *url)
{
    const struct ef_format_ops *format =
        strcmp(path, "-") == 0 ? NULL : ef_format_guess(path, NULL, 0);
    char duration[64] = "";

    if (cli->values.duration_ms > 0)
        ef_span_format((ef_span_ns){(int64_t)cli->values.duration_ms * EF_NS_PER_MS}, duration,
                       sizeof(duration));
    ef_cli_url_begin(cli, url, "/api/v1/import");
    ef_cli_url_param(url, "worker", cli->values.worker_id);
    ef_cli_url_param(url, "version", cli->values.version);
    ef_cli_url_param(url, "account", cli->values.account);
    ef_cli_url_param(url, "region", cli->values.region);
    ef_cli_url_param(url, "at", cli->values.at);
    ef_cli_url_param(url, "duration", duration);
    if (cli->values.format[0] != '\0')
        ef_cli_url_param(url, "format", cli->values.format);
    else if (format != NULL)
        ef_cli_url_param(url, "format", format->name);
    ef_cli_url_param(url, "type", cli->values.profile_type);
}

static void
say_notes(const char *path, const json_t *answer)
{
    const json_t *note;
    size_t i;

    json_array_foreach(json_object_get(answer, "notes"), i, note)
    {
        if (json_is_string(note))
            ef_cli_say("'%s': note: %s", path, json_string_value(note));
    }
}

static int
send_file(struct import_state *state, const char *path, const struct ef_buf *data)
{
    struct ef_cli_answer answer;
    struct ef_buf url;
    char what[300];
    double samples;
    int code;

    snprintf(what, sizeof(what), "'%.280s': ", path);
    import_url(state->cli, path, &url);
    code = ef_cli_ask_json(state->cli, &url, data->data, data->len, JSON_OBJECT, what, &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    samples = ef_cli_member_number(answer.json, "samples");
    if (samples > 0)
        state->samples += samples;
    say_notes(path, answer.json);
    ef_cli_answer_fini(&answer);
    return EF_CLI_OK;
}

static void
import_file(struct import_state *state, const char *path)
{
    struct ef_err err = {0};
    struct ef_buf data;
    int code;

    show_progress(state, path);
    if (ef_cli_read_file(path, EF_CLI_IMPORT_BYTES_MAX, &data, &err) != EF_OK) {
        show_progress(state, NULL);
        ef_cli_say("%s", err.msg);
        state->failed++;
    } else {
        show_progress(state, NULL);
        code = send_file(state, path, &data);
        ef_buf_fini(&data);
        state->failed += code != EF_CLI_OK;
        /* The next file would meet the same. */
        if (code == ef_rc_exit(EF_EUNREACH) || code == ef_rc_exit(EF_EAUTH) || code == EF_CLI_USAGE)
            state->stop_code = code;
    }
    state->done++;
}

static int
check_values(const struct ef_cli *cli)
{
    struct ef_err err = {0};
    ef_wall_ns at;
    int code = ef_cli_need_worker(cli);

    if (code != EF_CLI_OK)
        return code;
    if (cli->values.version[0] == '\0')
        return ef_cli_say_usage(cli->command, "which version? Give --version");
    if (cli->versions.count > 1)
        return ef_cli_say_usage(cli->command, "a file belongs to one version, and --version was "
                                              "given several times");
    if (cli->values.profile_type[0] != '\0' && ef_cli_check_type(cli) != EF_CLI_OK)
        return EF_CLI_USAGE;
    if (cli->values.format[0] != '\0' && ef_cli_find_format(cli->values.format) == NULL)
        return EF_CLI_USAGE;
    if (cli->values.at[0] != '\0' &&
        ef_wall_parse(cli->values.at, ef_wall_now(), &at, &err) != EF_OK)
        return ef_cli_say_usage(cli->command, "--at: %s", err.msg);
    return EF_CLI_OK;
}

static void
say_summary(const struct import_state *state)
{
    size_t count = (size_t)state->cli->argument_count;
    char samples[64], rest[96] = "";

    if (state->failed > 0)
        snprintf(rest, sizeof(rest), "; %zu failed", state->failed);
    if (state->done < count)
        snprintf(rest + strlen(rest), sizeof(rest) - strlen(rest), "; %zu not sent",
                 count - state->done);
    ef_cli_say("imported %zu of %zu file%s into '%s' version '%s', %s samples%s",
               state->done - state->failed, count, count == 1 ? "" : "s",
               state->cli->values.worker_id, state->cli->values.version,
               ef_cli_count_text(state->samples, samples, sizeof(samples)), rest);
}

int
ef_cli_import(struct ef_cli *cli)
{
    struct import_state state = {.cli = cli};
    int code = check_values(cli);

    if (code != EF_CLI_OK)
        return code;
    for (int i = 0; i < cli->argument_count && state.stop_code == EF_CLI_OK; i++)
        import_file(&state, cli->arguments[i]);
    say_summary(&state);
    if (state.stop_code != EF_CLI_OK)
        return state.stop_code;
    return state.failed > 0 ? EF_CLI_FAILED : EF_CLI_OK;
}
