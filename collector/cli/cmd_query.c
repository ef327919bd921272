/*
 * The command `query`: the profile of a range as a file. The answer is taken whole and looked at
 * before a byte of it is written, so an error never ends up in x.pprof.
 */
#include "collector/cli/selection.h"

#include <string.h>

/* Whether the body looks like the format; a format that only we write is checked as JSON. */
static bool
looks_like(const struct ef_format_ops *format, const struct ef_buf *body)
{
    json_t *json;

    if (body->len == 0)
        return false;
    if (format->sniff != NULL)
        return format->sniff(body->data, body->len);
    json = json_loadb((const char *)body->data, body->len, 0, NULL);
    json_decref(json);
    return json != NULL;
}

static int
check_answer(const struct ef_cli *cli, const struct ef_format_ops *format,
             const struct ef_buf *body)
{
    if (looks_like(format, body))
        return EF_CLI_OK;
    ef_cli_say("the answer of %s is not %s", cli->values.url, format->name);
    return EF_CLI_FAILED;
}

static int
write_answer(struct ef_cli *cli, const struct ef_buf *body)
{
    struct ef_err err = {0};

    if (cli->values.output[0] == '\0' || strcmp(cli->values.output, "-") == 0) {
        ef_buf_append(&cli->out, body->data, body->len);
        return EF_CLI_OK;
    }
    if (ef_cli_write_file(cli->values.output, body->data, body->len, &err) == EF_OK)
        return EF_CLI_OK;
    ef_cli_say("%s", err.msg);
    return EF_CLI_FAILED;
}

int
ef_cli_query(struct ef_cli *cli)
{
    const struct ef_format_ops *format;
    struct ef_cli_answer answer;
    struct ef_buf url;
    int code = ef_cli_check_selector(cli);

    if (code == EF_CLI_OK && cli->values.format[0] == '\0')
        code = ef_cli_say_usage(cli->command, "which format? Give --format, for example pprof");
    if (code != EF_CLI_OK)
        return code;
    format = ef_cli_find_format(cli->values.format);
    if (format == NULL)
        return EF_CLI_USAGE;
    code = ef_cli_refuse_binary(cli, format, cli->values.output, " or use -o FILE");
    if (code != EF_CLI_OK)
        return code;
    ef_cli_url_begin(cli, &url, "/api/v1/query");
    ef_cli_url_selector(cli, &url);
    ef_cli_url_param(&url, "format", format->name);
    code = ef_cli_ask(cli, &url, NULL, 0, EF_CLI_PROFILE_BYTES_MAX, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    code = check_answer(cli, format, &answer.response.body);
    if (code == EF_CLI_OK)
        code = write_answer(cli, &answer.response.body);
    ef_cli_answer_fini(&answer);
    return code;
}
