/*
 * The program `everflame`. Everything is in ef_cli_main, so that tests can link it.
 */
#include "collector/cli/cli.h"

int
main(int argc, char **argv)
{
    return ef_cli_main(argc, argv);
}
