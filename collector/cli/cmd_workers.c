/*
 * The commands `workers list` and `workers versions list`.
 */
#include "collector/cli/request.h"
#include "collector/cli/table.h"

/* One row: the members that both lists share are the last ones. */
static void
add_times(struct ef_cli_table *table, const json_t *row)
{
    struct ef_buf types;

    ef_buf_init(&types, 4096);
    ef_cli_join(&types, json_object_get(row, "profile_types"));
    ef_buf_put_u8(&types, '\0');
    ef_cli_table_add(table, ef_cli_member_text(row, "first_seen"));
    ef_cli_table_add(table, ef_cli_member_text(row, "last_seen"));
    ef_cli_table_add(table, types.failed ? "?" : (const char *)types.data);
    ef_buf_fini(&types);
}

int
ef_cli_workers_list(struct ef_cli *cli)
{
    static const struct ef_cli_column columns[] = {
        {"WORKER", false, true},      {"ACCOUNT", false, true},    {"VERSIONS", true, false},
        {"FIRST SEEN", false, false}, {"LAST SEEN", false, false}, {"MEASURED", false, false}};
    struct ef_cli_answer answer;
    struct ef_cli_table table;
    const json_t *row;
    struct ef_buf url;
    char text[64];
    size_t i;
    int code;

    ef_cli_url_begin(cli, &url, "/api/v1/workers");
    code = ef_cli_ask_json(cli, &url, NULL, 0, JSON_ARRAY, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    if (json_array_size(answer.json) == 0)
        ef_cli_say("no worker has samples yet (hint: 'everflame status' shows whether publishers "
                   "are connected)");
    if (cli->values.json) {
        ef_cli_answer_pass(&answer, &cli->out);
    } else if (json_array_size(answer.json) > 0) {
        ef_cli_table_init(&table, columns, EF_COUNT_OF(columns));
        json_array_foreach(answer.json, i, row)
        {
            ef_cli_table_add(&table, ef_cli_member_text(row, "worker"));
            ef_cli_table_add(&table, ef_cli_member_text(row, "account"));
            ef_cli_table_add(&table, ef_cli_count_text(ef_cli_member_number(row, "versions"), text,
                                                       sizeof(text)));
            add_times(&table, row);
        }
        ef_cli_table_print(&table, &cli->style, &cli->out);
        ef_cli_table_fini(&table);
    }
    ef_cli_answer_fini(&answer);
    return EF_CLI_OK;
}

int
ef_cli_workers_versions_list(struct ef_cli *cli)
{
    static const struct ef_cli_column columns[] = {{"VERSION", false, true},
                                                   {"ACCOUNT", false, true},
                                                   {"FIRST SEEN", false, false},
                                                   {"LAST SEEN", false, false},
                                                   {"MEASURED", false, false}};
    struct ef_cli_answer answer;
    struct ef_cli_table table;
    const json_t *row;
    struct ef_buf url;
    size_t i;
    int code = ef_cli_need_worker(cli);

    if (code != EF_CLI_OK)
        return code;
    ef_cli_url_begin(cli, &url, "/api/v1/versions");
    ef_cli_url_param(&url, "worker", cli->values.worker_id);
    ef_cli_url_param(&url, "account", cli->values.account);
    code = ef_cli_ask_json(cli, &url, NULL, 0, JSON_ARRAY, "", &answer);
    ef_buf_fini(&url);
    if (code != EF_CLI_OK)
        return code;
    if (cli->values.json) {
        ef_cli_answer_pass(&answer, &cli->out);
    } else if (json_array_size(answer.json) > 0) {
        ef_cli_table_init(&table, columns, EF_COUNT_OF(columns));
        json_array_foreach(answer.json, i, row)
        {
            ef_cli_table_add(&table, ef_cli_member_text(row, "version"));
            ef_cli_table_add(&table, ef_cli_member_text(row, "account"));
            add_times(&table, row);
        }
        ef_cli_table_print(&table, &cli->style, &cli->out);
        ef_cli_table_fini(&table);
    }
    if (json_array_size(answer.json) == 0) {
        ef_cli_say("there is no worker '%s' (hint: 'everflame workers list' shows the workers)",
                   cli->values.worker_id);
        code = EF_CLI_NOT_FOUND;
    }
    ef_cli_answer_fini(&answer);
    return code;
}
