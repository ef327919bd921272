/*
 * Decides what the parameters of a request mean and how errors are told. Knows nothing of sockets.
 * Runs in the threads of the pool.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/serve/internal.h"
#include "proto/base/utf8.h"

const char *
ef_request_param(const struct ef_request *request, const char *name)
{
    for (size_t i = 0; i < request->param_count; i++) {
        if (strcmp(request->params[i].name, name) == 0)
            return request->params[i].value;
    }
    return NULL;
}

void
ef_answer_hint(struct ef_answer *answer, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(answer->hint, sizeof(answer->hint), fmt, args);
    va_end(args);
}

static ef_rc
check_name(const char *name, const char *value, struct ef_err *err)
{
    if (!ef_name_valid(value, strlen(value), EF_STORE_NAME_MAX))
        return ef_err_set(err, EF_EINVAL,
                          "'%s' is not a name of 1 to %d bytes of UTF-8 without control characters",
                          name, EF_STORE_NAME_MAX);
    return EF_OK;
}

ef_rc
ef_request_name(const struct ef_request *request, const char *name, const char **ret_value,
                struct ef_answer *answer, struct ef_err *err)
{
    const char *value = ef_request_param(request, name);
    ef_rc rc;

    if (value == NULL) {
        ef_answer_hint(answer, "add ?%s=…", name);
        return ef_err_set(err, EF_EINVAL, "the parameter '%s' is missing", name);
    }
    rc = check_name(name, value, err);
    if (rc == EF_OK)
        *ret_value = value;
    return rc;
}

ef_rc
ef_request_time(const struct ef_request *request, const char *name, const char *fallback,
                int64_t *ret_ns, struct ef_err *err)
{
    const char *value = ef_request_param(request, name);
    ef_wall_ns at;
    ef_rc rc =
        ef_wall_parse(value != NULL ? value : fallback, (ef_wall_ns){request->now_ns}, &at, err);

    if (rc != EF_OK) {
        ef_err_prefix(err, "parameter '%s'", name);
        return rc;
    }
    *ret_ns = at.ns;
    return EF_OK;
}

static ef_rc
collect_names(const struct ef_request *request, const char *name, const char **list,
              size_t *ret_count, struct ef_err *err)
{
    size_t count = 0;

    for (size_t i = 0; i < request->param_count; i++) {
        const char *value = request->params[i].value;
        ef_rc rc;
        if (value == NULL || strcmp(request->params[i].name, name) != 0)
            continue;
        if (count == EF_SELECTOR_NAMES_MAX)
            return ef_err_set(err, EF_ELIMIT, "'%s' is given more than %d times", name,
                              EF_SELECTOR_NAMES_MAX);
        /* The region that is unknown is the empty text. */
        rc = value[0] == '\0' && strcmp(name, "region") == 0 ? EF_OK : check_name(name, value, err);
        if (rc != EF_OK)
            return rc;
        list[count++] = value;
    }
    *ret_count = count;
    return EF_OK;
}

ef_rc
ef_request_selector(const struct ef_request *request, struct ef_selector *ret_selector,
                    struct ef_answer *answer, struct ef_err *err)
{
    struct ef_selector selector = {.now_ns = request->now_ns,
                                   .account = ef_request_param(request, "account")};
    const char *type = ef_request_param(request, "type");
    ef_rc rc = ef_request_name(request, "worker", &selector.worker, answer, err);

    if (rc == EF_OK && selector.account != NULL)
        rc = check_name("account", selector.account, err);
    if (rc == EF_OK)
        rc = collect_names(request, "version", selector.versions, &selector.version_count, err);
    if (rc == EF_OK)
        rc = collect_names(request, "region", selector.regions, &selector.region_count, err);
    if (rc != EF_OK)
        return rc;
    selector.profile_type = ef_type_find(type != NULL ? type : "cpu");
    if (selector.profile_type == 0) {
        ef_answer_hint(answer, "types are cpu, alloc (also heap), inuse, wall");
        return ef_err_set(err, EF_EINVAL, "there is no profile type '%.64s'", type);
    }
    rc = ef_request_time(request, "from", "now-1h", &selector.from_ns, err);
    if (rc == EF_OK)
        rc = ef_request_time(request, "to", "now", &selector.to_ns, err);
    if (rc != EF_OK) {
        ef_answer_hint(answer, "write now-15m, 2026-12-01T03:12:00Z, or Unix seconds");
        return rc;
    }
    *ret_selector = selector;
    return EF_OK;
}

void
ef_json_time(struct ef_json *json, const char *key, int64_t ns)
{
    char text[48];

    ef_json_kstr(json, key, ef_wall_format((ef_wall_ns){ns}, text, sizeof(text)));
}

void
ef_answer_error(struct ef_answer *answer, const struct ef_err *err)
{
    struct ef_json json;

    ef_buf_clear(&answer->body);
    ef_json_init(&json, &answer->body);
    ef_json_object(&json);
    ef_json_key(&json, "error");
    ef_json_object(&json);
    ef_json_kstr(&json, "code", ef_rc_name(err->rc));
    ef_json_kstr(&json, "message", err->msg[0] != '\0' ? err->msg : ef_rc_sentence(err->rc));
    if (answer->hint[0] != '\0')
        ef_json_kstr(&json, "hint", answer->hint);
    else
        ef_json_kstr(&json, "hint",
                     ef_rc_retry(err->rc) ? "try again in a moment" : "see collector/serve/API.md");
    if (answer->reason != NULL)
        ef_json_kstr(&json, "reason", answer->reason);
    ef_json_object_end(&json);
    ef_json_object_end(&json);
    ef_buf_append_str(&answer->body, "\n");
    answer->content_type = "application/json";
    answer->has_samples = false;
    answer->status = (unsigned)ef_rc_http(err->rc);
}

void
ef_answer_make(struct ef_request *request, struct ef_answer *answer)
{
    struct ef_err err = {0};
    ef_rc rc = EF_OK;

    answer->status = 200;
    answer->content_type = "application/json";
    request->now_ns = ef_wall_now().ns;
    for (size_t i = 0; i < request->param_count && rc == EF_OK; i++)
        rc = ef_route_check_param(request->route, request->params[i].name, answer, &err);
    if (rc == EF_OK)
        rc = request->route->handler(request, answer, &err);
    if (rc == EF_OK)
        rc = ef_buf_check(&answer->body, "answer", &err);
    if (rc == EF_OK)
        return;
    err.rc = rc;
    ef_answer_error(answer, &err);
}
