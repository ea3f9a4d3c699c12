//! The derive of rows: a struct is the one declaration of its table.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Data, DeriveInput, Field, Fields, Ident, LitInt, LitStr, Path, Token, Type, parenthesized};

use crate::variants::each_of;

/// What stands on the struct.
struct Declared {
    krate: Path,
    table: LitStr,
    indexes: Vec<Index>,
    append_only: bool,
}

struct Index {
    name: Ident,
    columns: Vec<Ident>,
    unique: bool,
}

/// A field and its column.
struct Column<'i> {
    field: &'i Ident,
    of: &'i Type,
    name: String,
    /// The kind, where it is not the one of the type.
    kind: Option<TokenStream>,
    is_key: bool,
    is_state: bool,
}

pub(crate) fn row(input: &DeriveInput) -> syn::Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(syn::Error::new_spanned(&input.ident, "only a struct can be a row"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(syn::Error::new_spanned(&input.ident, "the columns of a row are named by its fields"));
    };
    let declared = declared(input)?;
    let columns = fields.named.iter().map(column).collect::<syn::Result<Vec<_>>>()?;
    check(input, &declared, &columns)?;
    Ok(implementation(input, &declared, &columns))
}

fn declared(input: &DeriveInput) -> syn::Result<Declared> {
    let (mut krate, mut table) = (syn::parse_quote!(::towpath), None);
    let (mut indexes, mut append_only) = (Vec::new(), false);
    each_of(&input.attrs, "row", |meta| {
        if meta.path.is_ident("crate") {
            krate = meta.value()?.parse::<LitStr>()?.parse()?;
        } else if meta.path.is_ident("table") {
            table = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("append_only") {
            append_only = true;
        } else if meta.path.is_ident("index") || meta.path.is_ident("unique") {
            let unique = meta.path.is_ident("unique");
            meta.parse_nested_meta(|one| index(&one, unique).map(|made| indexes.push(made)))?;
        } else {
            return Err(meta.error("a row takes `table`, `index`, `unique`, `append_only` and `crate`"));
        }
        Ok(())
    })?;
    let table: LitStr = table.ok_or_else(|| {
        syn::Error::new_spanned(&input.ident, "a row needs its table; write #[row(table = \"...\")]")
    })?;
    Ok(Declared { krate, table, indexes, append_only })
}

/// `name(column, column)`
fn index(meta: &ParseNestedMeta<'_>, unique: bool) -> syn::Result<Index> {
    let name = meta.path.require_ident()?.clone();
    if !meta.input.peek(syn::token::Paren) {
        return Err(meta.error("an index has a name and its columns: `orders_buyer(buyer_id, order_id)`"));
    }
    let content;
    parenthesized!(content in meta.input);
    let columns = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?;
    Ok(Index { name, columns: columns.into_iter().collect(), unique })
}

fn column(field: &Field) -> syn::Result<Column<'_>> {
    let ident = field.ident.as_ref().ok_or_else(|| syn::Error::new_spanned(field, "a column has a name"))?;
    let (mut name, mut kind) = (ident.unraw().to_string(), None);
    let (mut is_key, mut is_state) = (false, false);
    each_of(&field.attrs, "row", |meta| {
        if meta.path.is_ident("key") {
            is_key = true;
        } else if meta.path.is_ident("state") {
            is_state = true;
        } else if meta.path.is_ident("column") {
            name = meta.value()?.parse::<LitStr>()?.value();
        } else if meta.path.is_ident("name") {
            let length = meta.value()?.parse::<LitInt>()?.base10_parse::<u16>()?;
            kind = Some(quote!(Name(#length)));
        } else if meta.path.is_ident("json") {
            kind = Some(quote!(Json));
        } else if meta.path.is_ident("count") {
            kind = Some(quote!(Count));
        } else {
            return Err(
                meta.error("a column takes `key`, `state`, `column`, `name = LENGTH`, `json` and `count`")
            );
        }
        Ok(())
    })?;
    Ok(Column { field: ident, of: &field.ty, name, kind, is_key, is_state })
}

/// Refuses what no database would make a table of: all of it at once.
fn check(input: &DeriveInput, declared: &Declared, columns: &[Column<'_>]) -> syn::Result<()> {
    let mut flaws: Vec<syn::Error> = Vec::new();
    if !columns.iter().any(|column| column.is_key) {
        let why = "a row needs a key; write #[row(key)] on each field that belongs to it";
        flaws.push(syn::Error::new_spanned(&input.ident, why));
    }
    for (at, column) in columns.iter().enumerate() {
        if columns[..at].iter().any(|before| before.name == column.name) {
            flaws.push(syn::Error::new_spanned(column.field, "another field has this column"));
        }
    }
    for second in columns.iter().filter(|column| column.is_state).skip(1) {
        flaws.push(syn::Error::new_spanned(second.field, "a row has one state"));
    }
    for of_index in declared.indexes.iter().flat_map(|index| &index.columns) {
        if !columns.iter().any(|column| of_index == &column.name) {
            flaws.push(syn::Error::new_spanned(of_index, "the row has no such column"));
        }
    }
    let mut flaws = flaws.into_iter();
    let Some(mut first) = flaws.next() else { return Ok(()) };
    flaws.for_each(|flaw| first.combine(flaw));
    Err(first)
}

fn implementation(input: &DeriveInput, declared: &Declared, columns: &[Column<'_>]) -> TokenStream {
    let Declared { krate, table, indexes, append_only } = declared;
    let ident = &input.ident;
    let (generics, arguments, conditions) = input.generics.split_for_impl();
    let made = columns.iter().map(|Column { of, name, kind, .. }| {
        let kind = kind.as_ref().map(|kind| quote!(.kind(#krate::tables::ColumnKind::#kind)));
        quote!(#krate::tables::Column::of::<#of>(#name)#kind)
    });
    let made_indexes = indexes.iter().map(|Index { name, columns, unique }| {
        let (name, columns) = (name.to_string(), columns.iter().map(ToString::to_string));
        let make = if *unique { quote!(unique) } else { quote!(new) };
        quote!(#krate::tables::Index::#make(#name, &[#(#columns),*]))
    });
    let append_only = append_only.then(|| quote!(.append_only()));
    let keys: Vec<_> = columns.iter().filter(|column| column.is_key).collect();
    let (key_names, key_types) = (keys.iter().map(|key| &key.name), keys.iter().map(|key| key.of));
    let (key, key_values) = if let [only] = keys.as_slice() {
        let of = only.of;
        (quote!(#of), quote!(#krate::tables::ColumnValue::write(key)))
    } else {
        let places = (0..keys.len()).map(syn::Index::from);
        (quote!((#(#key_types),*)), quote!(#(#krate::tables::ColumnValue::write(&key.#places)),*))
    };
    let state = columns.iter().find(|column| column.is_state).map(|column| {
        let name = &column.name;
        quote!(const STATE: ::core::option::Option<&'static str> = ::core::option::Option::Some(#name);)
    });
    let fields: Vec<_> = columns.iter().map(|column| column.field).collect();
    let names = columns.iter().map(|column| &column.name);
    quote! {
        #[automatically_derived]
        impl #generics #krate::tables::Row for #ident #arguments #conditions {
            const TABLE: &'static #krate::tables::Table = &#krate::tables::Table::new(
                #table,
                &[#(#made),*],
                &[#(#key_names),*],
                &[#(#made_indexes),*],
            )#append_only;
            #state
            type Key = #key;
            fn key_values(key: &Self::Key) -> ::std::vec::Vec<#krate::tables::Value<'_>> {
                ::std::vec![#key_values]
            }
            fn values(&self) -> ::std::vec::Vec<#krate::tables::Value<'_>> {
                ::std::vec![#(#krate::tables::ColumnValue::write(&self.#fields)),*]
            }
            fn read(
                record: &#krate::tables::Record,
            ) -> ::core::result::Result<Self, #krate::ports::store::StoreError> {
                ::core::result::Result::Ok(Self {
                    #(#fields: #krate::tables::ColumnValue::read(record, #names)?),*
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn refused(input: &DeriveInput) -> Vec<String> {
        row(input).unwrap_err().into_iter().map(|flaw| flaw.to_string()).collect()
    }

    #[test]
    fn a_row_without_a_table_or_a_key_is_refused_with_what_to_write() {
        let no_table = refused(&parse_quote! { struct Order { #[row(key)] order_id: i64 } });
        assert_eq!(no_table, ["a row needs its table; write #[row(table = \"...\")]"]);
        let no_key = refused(&parse_quote! { #[row(table = "orders")] struct Order { order_id: i64 } });
        assert!(no_key[0].starts_with("a row needs a key; write #[row(key)]"), "{no_key:?}");
    }

    #[test]
    fn an_index_over_what_is_no_column_is_refused() {
        let flaws = refused(&parse_quote! {
            #[row(table = "orders", index(orders_buyer(buyer, order_id)), unique(orders_no(number)))]
            struct Order { #[row(key)] order_id: i64, #[row(column = "buyer")] buyer_id: i64 }
        });
        assert_eq!(flaws, ["the row has no such column"], "a column is named as the table has it");
    }

    #[test]
    fn what_cannot_be_one_table_is_refused_at_once() {
        let flaws = refused(&parse_quote! {
            #[row(table = "orders")]
            struct Order {
                #[row(key)] order_id: i64,
                #[row(state)] status: String,
                #[row(state, column = "order_id")] other: String,
            }
        });
        assert_eq!(flaws, ["another field has this column", "a row has one state"]);
        let misspelt = refused(&parse_quote! {
            #[row(table = "orders")] struct Order { #[row(keys)] order_id: i64 }
        });
        assert!(misspelt[0].starts_with("a column takes `key`"), "{misspelt:?}");
        let no_struct = refused(&parse_quote! { #[row(table = "orders")] enum Order { A } });
        assert_eq!(no_struct, ["only a struct can be a row"]);
    }
}
