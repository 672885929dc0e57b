"""Times with seconds and in the order of the calendar: operators compare them with each other and with logs."""

DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "Y-m-d H:i:s"
