// Clients that compile for devices that are not here: see target.c.
void *target_table(const void *of, const char *gpu_path, const char **problem);
char *target_set(void *client, const char *config, const char *sizes);
