/*
 * Asking the collector: addresses, answers, errors, JSON.
 *
 * Invariants: a function that returns an exit code has said why when it is not 0. What the server
 * sends is from outside: sizes are bounded, JSON is checked, missing members have a default.
 */
#ifndef COLLECTOR_CLI_REQUEST_H
#define COLLECTOR_CLI_REQUEST_H

#include "collector/cli/cli.h"
#include "proto/http/http_client.h"

#include <jansson.h>

struct ef_cli_answer {
    struct ef_http_response response;
    json_t *json; /* NULL when the answer is not JSON or was not asked as JSON */
};

/* Starts an address of the API ("/api/v1/top") in `url`, which the caller finishes. */
void ef_cli_url_begin(const struct ef_cli *cli, struct ef_buf *url, const char *path);
/* Appends a parameter, percent-encoded; nothing for an empty value. */
void ef_cli_url_param(struct ef_buf *url, const char *name, const char *value);
/* Appends worker, account, versions, profile type and range. */
void ef_cli_url_selector(const struct ef_cli *cli, struct ef_buf *url);

/*
 * GET, or POST when body is not NULL. EF_CLI_OK only for a 2xx answer; then the caller finishes
 * *ret. Otherwise *ret holds nothing. `what` begins the message ("" for none).
 */
int ef_cli_ask(const struct ef_cli *cli, struct ef_buf *url, const void *body, size_t body_bytes,
               size_t answer_bytes_max, const char *what, struct ef_cli_answer *ret);
/* The same with a JSON answer of this type, checked. */
int ef_cli_ask_json(const struct ef_cli *cli, struct ef_buf *url, const void *body,
                    size_t body_bytes, json_type type, const char *what, struct ef_cli_answer *ret);
void ef_cli_answer_fini(struct ef_cli_answer *answer);
/* Appends the JSON as the server sent it, and a newline. */
void ef_cli_answer_pass(const struct ef_cli_answer *answer, struct ef_buf *out);
/* EF_CLI_OK, or, for an answer with a member "empty", says why and gives 3 or 4. */
int ef_cli_answer_empty(const struct ef_cli_answer *answer);

/* Members with defaults: "" and NAN when absent or of another type. */
const char *ef_cli_member_text(const json_t *object, const char *name);
double ef_cli_member_number(const json_t *object, const char *name);
/* Time span between two members in RFC 3339, in nanoseconds; 0 when one is missing. */
double ef_cli_member_span_ns(const json_t *object, const char *from, const char *to);
/* Members of an array of texts joined by ", ", cleaned. */
void ef_cli_join(struct ef_buf *out, const json_t *array);

#endif
