//! The derive of stored names: an enum without content is a text in a column.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, LitStr, Path};

use crate::variants::{each_of, named};

/// As many characters as the column takes.
const LONGEST: usize = 64;

pub(crate) fn stored_name(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut krate: Path = syn::parse_quote!(::towpath);
    each_of(&input.attrs, "stored", |meta| {
        if !meta.path.is_ident("crate") {
            return Err(meta.error("a stored name takes `crate`"));
        }
        krate = meta.value()?.parse::<LitStr>()?.parse()?;
        Ok(())
    })?;
    let variants = named(input, "on_sale")?;
    for one in &variants {
        if !one.variant.fields.is_empty() {
            return Err(syn::Error::new_spanned(one.variant, "what is stored by its name has no content"));
        }
        if one.name.value().chars().count() > LONGEST {
            return Err(syn::Error::new(one.name.span(), "a stored name has at most 64 characters"));
        }
    }
    let DeriveInput { ident, vis, .. } = input;
    let idents: Vec<_> = variants.iter().map(|one| &one.variant.ident).collect();
    let names: Vec<_> = variants.iter().map(|one| &one.name).collect();
    let count = variants.len();
    Ok(quote! {
        #[allow(dead_code, reason = "not everybody needs all of them")]
        #[automatically_derived]
        impl #ident {
            /// All of them.
            #vis const ALL: [Self; #count] = [#(Self::#idents),*];
            /// As it is stored.
            #vis const fn as_str(self) -> &'static str {
                match self { #(Self::#idents => #names),* }
            }
            /// The one that is stored so.
            #vis fn named(name: &str) -> ::core::option::Option<Self> {
                match name {
                    #(#names => ::core::option::Option::Some(Self::#idents),)*
                    _ => ::core::option::Option::None,
                }
            }
        }
        #[automatically_derived]
        impl ::core::fmt::Display for #ident {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        #[automatically_derived]
        impl ::core::convert::From<#ident> for #krate::tables::Value<'_> {
            fn from(name: #ident) -> Self {
                Self::from(name.as_str())
            }
        }
        #[automatically_derived]
        impl #krate::tables::ColumnValue for #ident {
            const KIND: #krate::tables::ColumnKind = #krate::tables::ColumnKind::Name(64);
            fn write(&self) -> #krate::tables::Value<'_> {
                self.as_str().into()
            }
            fn read(
                record: &#krate::tables::Record,
                column: &str,
            ) -> ::core::result::Result<Self, #krate::ports::store::StoreError> {
                record.named(column, Self::named)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn what_cannot_be_stored_by_its_name_is_refused() {
        let refused = |input: &DeriveInput| stored_name(input).unwrap_err().to_string();
        let nameless = refused(&parse_quote! { enum Status { OnSale } });
        assert!(nameless.starts_with("`OnSale` has no stored name"), "{nameless}");
        let full = refused(&parse_quote! { enum Status { #[serde(rename = "sold")] Sold(i64) } });
        assert_eq!(full, "what is stored by its name has no content");
        let mut long: DeriveInput = parse_quote! { enum Status { #[serde(rename = "sold")] Sold } };
        let name = LitStr::new(&"s".repeat(65), proc_macro2::Span::call_site());
        if let syn::Data::Enum(data) = &mut long.data {
            data.variants[0].attrs = vec![parse_quote!(#[serde(rename = #name)])];
        }
        assert_eq!(refused(&long), "a stored name has at most 64 characters");
    }
}
