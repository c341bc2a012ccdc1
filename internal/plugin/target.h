// Clients that compile for devices that are not here: see target.c.
char *target_table(const void *of, const char *gpu_path, void **made);
char *target_set(void *client, const char *config, const char *sizes);
