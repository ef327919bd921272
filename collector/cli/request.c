/*
 * Decides how the collector is asked and what its answers and errors mean for the exit code. Must
 * not know which command asks. Main thread.
 */
#include "collector/cli/request.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "proto/base/time.h"

/* Worker, account, 64 versions of 255 bytes, each percent-encoded to three times its length. */
#define URL_BYTES_MAX ((size_t)64 << 10)

void
ef_cli_url_begin(const struct ef_cli *cli, struct ef_buf *url, const char *path)
{
    size_t len = strlen(cli->values.url);

    while (len > 0 && cli->values.url[len - 1] == '/')
        len--;
    ef_buf_init(url, URL_BYTES_MAX);
    ef_buf_append(url, cli->values.url, len);
    ef_buf_append_str(url, path);
}

void
ef_cli_url_param(struct ef_buf *url, const char *name, const char *value)
{
    bool first = memchr(url->data, '?', url->len) == NULL;

    if (*value == '\0')
        return;
    ef_buf_printf(url, "%c%s=", first ? '?' : '&', name);
    for (; *value != '\0'; value++) {
        unsigned char byte = (unsigned char)*value;
        if (isalnum(byte) || strchr("-._~", byte) != NULL)
            ef_buf_put_u8(url, byte);
        else
            ef_buf_printf(url, "%%%02X", byte);
    }
}

void
ef_cli_url_selector(const struct ef_cli *cli, struct ef_buf *url)
{
    ef_cli_url_param(url, "worker", cli->values.worker_id);
    ef_cli_url_param(url, "account", cli->values.account);
    for (size_t i = 0; i < cli->versions.count; i++)
        ef_cli_url_param(url, "version", cli->versions.items[i]);
    ef_cli_url_param(url, "type", cli->values.profile_type);
    ef_cli_url_param(url, "from", cli->values.from);
    ef_cli_url_param(url, "to", cli->values.to);
}

const char *
ef_cli_member_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text != NULL ? text : "";
}

double
ef_cli_member_number(const json_t *object, const char *name)
{
    const json_t *member = json_object_get(object, name);

    return json_is_number(member) ? json_number_value(member) : NAN;
}

double
ef_cli_member_span_ns(const json_t *object, const char *from, const char *to)
{
    ef_wall_ns first, last, now = {0};

    if (ef_wall_parse(ef_cli_member_text(object, from), now, &first, NULL) != EF_OK ||
        ef_wall_parse(ef_cli_member_text(object, to), now, &last, NULL) != EF_OK)
        return 0;
    return (double)last.ns - (double)first.ns;
}

void
ef_cli_join(struct ef_buf *out, const json_t *array)
{
    const json_t *item;
    size_t i;

    json_array_foreach(array, i, item)
    {
        const char *text = json_string_value(item);
        ef_buf_append_str(out, i > 0 ? ", " : "");
        ef_cli_clean(out, text != NULL ? text : "?");
    }
}

/* The code whose name stands in an error of the server; EF_EIO when it is none of ours. */
static ef_rc
code_of_name(const char *name)
{
    static const ef_rc codes[] = {
#define X(id, number, sentence, retry, http, exit) id,
#include "proto/base/rc.def"
#undef X
    };

    for (size_t i = 0; i < EF_COUNT_OF(codes); i++) {
        if (strcmp(ef_rc_name(codes[i]), name) == 0)
            return codes[i];
    }
    return EF_EIO;
}

/* "before_data" and its like, to the exit code: the range is empty, or it was there and quiet. */
static int
exit_of_reason(const char *reason)
{
    return strcmp(reason, "no_samples") == 0 ? EF_CLI_NOTHING : EF_CLI_NOT_FOUND;
}

static const char *
hint_of_reason(const char *reason)
{
    static const struct {
        const char *reason, *hint;
    } hints[] = {
        {"no_such_worker", "'everflame workers list' shows the workers"},
        {"no_such_version", "'everflame workers versions list' shows the versions"},
        {"no_such_type", "'everflame workers versions list' shows what was measured"},
        {"before_data", "'everflame status' shows how far back data go"},
        {"after_data", "'everflame collect' brings the newest samples, 'everflame status' shows "
                       "whether publishers are connected"},
        {"no_samples", "was there traffic? 'everflame status' shows the targets"},
    };

    for (size_t i = 0; i < EF_COUNT_OF(hints); i++) {
        if (strcmp(hints[i].reason, reason) == 0)
            return hints[i].hint;
    }
    return "";
}

static void
say_with_hint(const char *message, const char *hint)
{
    if (*hint != '\0')
        ef_cli_say("%s (hint: %s)", message, hint);
    else
        ef_cli_say("%s", message);
}

int
ef_cli_answer_empty(const struct ef_cli_answer *answer)
{
    const json_t *empty = json_object_get(answer->json, "empty");
    const char *reason = ef_cli_member_text(empty, "reason");
    const char *message = ef_cli_member_text(empty, "message");

    if (!json_is_object(empty))
        return EF_CLI_OK;
    say_with_hint(*message != '\0' ? message : "there are no samples", hint_of_reason(reason));
    return exit_of_reason(reason);
}

static int
exit_of_status(int status, ef_rc code)
{
    if (status == 401 || status == 403)
        return ef_rc_exit(EF_EAUTH);
    if (status == 429)
        return ef_rc_exit(EF_ERATE);
    if (status == 404)
        return EF_CLI_NOT_FOUND;
    /* What is "wrong usage" for the server is a refusal for us: our own usage was checked. An
     * answer came, so the server is reachable. */
    return ef_rc_exit(code) == ef_rc_exit(EF_ERATE) ? ef_rc_exit(code) : EF_CLI_FAILED;
}

/* Says what an answer with an error status means. */
static int
refused(const struct ef_http_response *response, const char *what)
{
    json_t *json = json_loadb((const char *)response->body.data, response->body.len,
                              JSON_REJECT_DUPLICATES, NULL);
    const json_t *error = json_object_get(json, "error");
    const char *message = ef_cli_member_text(error, "message");
    const char *hint = ef_cli_member_text(error, "hint");
    const char *reason = ef_cli_member_text(error, "reason");
    char retry[64], line[1024];
    int code = exit_of_status(response->status, code_of_name(ef_cli_member_text(error, "code")));

    if (*message == '\0')
        snprintf(line, sizeof(line), "%sthe server answered with HTTP status %d and no reason",
                 what, response->status);
    else
        snprintf(line, sizeof(line), "%s%.700s", what, message);
    if (response->status == 429 && ef_http_header(response, "Retry-After", retry, sizeof(retry)))
        snprintf(line + strlen(line), sizeof(line) - strlen(line), "; try again in %.32s s", retry);
    if (*message == '\0' && response->status != 429)
        hint = "is this the address of a collector?";
    else if (*hint_of_reason(reason) != '\0')
        hint = hint_of_reason(reason); /* a command says more here than a route */
    say_with_hint(line, hint);
    if (*reason != '\0' && response->status == 404)
        code = exit_of_reason(reason);
    json_decref(json);
    return code;
}

static int
say_not_reached(const struct ef_cli *cli, const struct ef_err *err, const char *what)
{
    const char *detail = strstr(err->msg, ": ");

    detail = detail != NULL ? detail + 2 : err->msg;
    if (err->rc == EF_EUNREACH)
        ef_cli_say("%scannot reach the collector at %s: %s (hint: start it with ops/run, or set "
                   "EVERFLAME_URL or --url)",
                   what, cli->values.url, detail);
    else
        ef_cli_say("%scollector at %s: %s", what, cli->values.url, detail);
    return err->rc == EF_EUSAGE ? EF_CLI_FAILED : ef_rc_exit(err->rc);
}

static int
check_url(const struct ef_cli *cli)
{
    const char *url = cli->values.url;

    if ((strncmp(url, "http://", 7) == 0 && url[7] != '\0') ||
        (strncmp(url, "https://", 8) == 0 && url[8] != '\0'))
        return EF_CLI_OK;
    return ef_cli_say_usage(cli->command,
                            "'%s' is not an address of a collector; write for example "
                            "http://127.0.0.1:4680",
                            url);
}

int
ef_cli_ask(const struct ef_cli *cli, struct ef_buf *url, const void *body, size_t body_bytes,
           size_t answer_bytes_max, const char *what, struct ef_cli_answer *ret)
{
    static const char *const headers[] = {"Content-Type: application/octet-stream"};
    struct ef_http_request request = {.body = body,
                                      .body_bytes = body_bytes,
                                      .headers = headers,
                                      .header_count = body_bytes > 0,
                                      .timeout_ms = cli->values.timeout_ms,
                                      .response_bytes_max = answer_bytes_max};
    struct ef_cli_answer answer = {0};
    struct ef_err err = {0};
    int code = check_url(cli);

    if (code != EF_CLI_OK)
        return code;
    ef_buf_put_u8(url, '\0');
    if (ef_buf_check(url, "the address of the question", &err) != EF_OK)
        return ef_cli_say_err(&err);
    request.url = (const char *)url->data;
    if (ef_http_do(&request, &answer.response, &err) != EF_OK)
        return say_not_reached(cli, &err, what);
    if (answer.response.status < 200 || answer.response.status > 299) {
        code = refused(&answer.response, what);
        ef_cli_answer_fini(&answer);
        return code;
    }
    *ret = answer;
    return EF_CLI_OK;
}

int
ef_cli_ask_json(const struct ef_cli *cli, struct ef_buf *url, const void *body, size_t body_bytes,
                json_type type, const char *what, struct ef_cli_answer *ret)
{
    struct ef_cli_answer answer = {0};
    json_error_t error;
    int code = ef_cli_ask(cli, url, body, body_bytes, EF_CLI_JSON_BYTES_MAX, what, &answer);

    if (code != EF_CLI_OK)
        return code;
    answer.json = json_loadb((const char *)answer.response.body.data, answer.response.body.len,
                             JSON_REJECT_DUPLICATES, &error);
    if (answer.json == NULL || json_typeof(answer.json) != type) {
        if (answer.json == NULL)
            ef_cli_say("%sthe answer of %s is not JSON: %s", what, cli->values.url, error.text);
        else
            ef_cli_say("%sthe answer of %s is JSON, but not what was asked for", what,
                       cli->values.url);
        ef_cli_answer_fini(&answer);
        return EF_CLI_FAILED;
    }
    *ret = answer;
    return EF_CLI_OK;
}

void
ef_cli_answer_fini(struct ef_cli_answer *answer)
{
    json_decref(answer->json);
    ef_http_response_fini(&answer->response);
    *answer = (struct ef_cli_answer){0};
}

void
ef_cli_answer_pass(const struct ef_cli_answer *answer, struct ef_buf *out)
{
    const struct ef_buf *body = &answer->response.body;
    size_t len = body->len;

    while (len > 0 && isspace(body->data[len - 1]))
        len--;
    ef_buf_append(out, body->data, len);
    ef_buf_append_str(out, "\n");
}
