/*
 * The commands help, version and completions: what the program says about itself.
 */
#include "collector/cli/cli.h"

#include <string.h>

int
ef_cli_help(struct ef_cli *cli)
{
    int word_count = 0;
    const struct ef_cli_command *command =
        ef_cli_command_find(cli->argument_count, cli->arguments, &word_count);

    if (cli->values.markdown)
        ef_cli_help_markdown(&cli->out);
    else if (cli->argument_count == 0)
        ef_cli_help_all(&cli->out);
    else if (command != NULL && word_count == cli->argument_count)
        ef_cli_help_command(&cli->out, command);
    else if (ef_cli_command_is_group(cli->argument_count, cli->arguments, &word_count) &&
             word_count == cli->argument_count)
        ef_cli_help_group(&cli->out, cli->argument_count, cli->arguments, word_count);
    else
        return ef_cli_command_unknown(cli->argument_count, cli->arguments);
    return EF_CLI_OK;
}

int
ef_cli_version(struct ef_cli *cli)
{
    ef_buf_append_str(&cli->out, "everflame " EF_VERSION "\n");
    return EF_CLI_OK;
}

int
ef_cli_completions(struct ef_cli *cli)
{
    const char *shell = cli->arguments[0];
    static const char *const shells[] = {"bash", "zsh", "fish"};
    const char *nearest;

    if (strcmp(shell, "bash") == 0) {
        ef_cli_completions_bash(&cli->out);
    } else if (strcmp(shell, "zsh") == 0) {
        ef_cli_completions_zsh(&cli->out);
    } else if (strcmp(shell, "fish") == 0) {
        ef_cli_completions_fish(&cli->out);
    } else {
        nearest = ef_nearest_word(shell, shells, EF_COUNT_OF(shells));
        return ef_cli_say_usage(cli->command, "there are no completions for '%.32s'; %s%s%s", shell,
                                nearest != NULL ? "do you mean '" : "there are bash, zsh, fish",
                                nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
    }
    return EF_CLI_OK;
}
