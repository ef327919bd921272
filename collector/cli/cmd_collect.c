/*
 * The command `collect`: asks the agents to end the running profiles now.
 */
#include "collector/cli/request.h"

int
ef_cli_collect(struct ef_cli *cli)
{
    struct ef_cli_answer answer;
    struct ef_buf url;
    int code = ef_cli_need_worker(cli);

    if (code != EF_CLI_OK)
        return code;
    ef_cli_url_begin(cli, &url, "/api/v1/collect");
    ef_cli_url_param(&url, "worker", cli->values.worker_id);
    ef_cli_url_param(&url, "account", cli->values.account);
    for (size_t i = 0; i < cli->versions.count; i++)
        ef_cli_url_param(&url, "version", cli->versions.items[i]);
    code = ef_cli_ask_json(cli, &url, "", 0, JSON_OBJECT, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    if (!json_is_true(json_object_get(answer.json, "requested"))) {
        const char *message = ef_cli_member_text(answer.json, "message");
        if (*message == '\0')
            message = "the collector did not say why";
        ef_cli_say("no agent was asked: %s", message);
        code = EF_CLI_NOTHING;
    } else {
        ef_cli_say("the agents of worker '%s' are asked to end their profiles; the samples follow "
                   "in a few seconds",
                   cli->values.worker_id);
    }
    ef_cli_answer_fini(&answer);
    return code;
}
