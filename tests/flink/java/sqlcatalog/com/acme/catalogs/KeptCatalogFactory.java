package com.acme.catalogs;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.catalog.Catalog;
import org.apache.flink.table.catalog.CatalogTable;
import org.apache.flink.table.catalog.GenericInMemoryCatalog;
import org.apache.flink.table.catalog.ObjectPath;
import org.apache.flink.table.catalog.ResolvedCatalogTable;
import org.apache.flink.table.catalog.ResolvedSchema;
import org.apache.flink.table.factories.CatalogFactory;

/** A catalog as of a metastore, whose database has a table already. */
public class KeptCatalogFactory implements CatalogFactory {

  /** The catalog. */
  public static class KeptCatalog extends GenericInMemoryCatalog {

    public KeptCatalog(String name) {
      super(name, "default");
    }

    @Override
    public void open() {
      super.open();
      Map<String, String> options = new HashMap<>();
      options.put("connector", "datagen");
      CatalogTable table =
          CatalogTable.newBuilder()
              .schema(Schema.newBuilder().column("id", DataTypes.BIGINT()).build())
              .options(options)
              .build();
      ResolvedSchema schema = ResolvedSchema.of();
      try {
        createTable(new ObjectPath("default", "kept_orders"), new ResolvedCatalogTable(table, schema), true);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }
  }

  @Override
  public String factoryIdentifier() {
    return "kept";
  }

  @Override
  public Set<ConfigOption<?>> requiredOptions() {
    return Set.of();
  }

  @Override
  public Set<ConfigOption<?>> optionalOptions() {
    return Set.of();
  }

  @Override
  public Catalog createCatalog(Context context) {
    return new KeptCatalog(context.getName());
  }
}
