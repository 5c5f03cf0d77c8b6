-- Operations enqueued while the plugin had detail off: nobody saw them begin or end, and nobody judges by them.
ALTER TABLE ${local}.collectives ADD COLUMN IF NOT EXISTS untimed Nullable(Bool);
ALTER TABLE ${local}.progress ADD COLUMN IF NOT EXISTS untimed Nullable(Bool);
