"""Raw queues measured beside bare LPUSH and RPOP on the same server, in the same run."""
