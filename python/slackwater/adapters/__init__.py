"""What knows a library by name. Each is imported only where that library is already loaded."""
